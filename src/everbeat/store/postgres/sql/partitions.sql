-- name: partition_renew
-- Record a heartbeat. Renew owned partitions that are wanted, release owned ones that are not, and take wanted ones that are
-- free or expired. A lease that ends later than any valid lease counts as expired: the clock was set back. Rows that another
-- transaction has locked are skipped and returned: one locked row must not cost the node its other leases. A node whose version
-- is too old for the schema wants none.
WITH moment AS (
  SELECT coalesce(:now::timestamptz, now()) AS at,
    CASE WHEN :schema::integer >= (SELECT minimum FROM everbeat_schema) THEN :wanted::smallint[] ELSE '{}' END AS wanted
),
known AS MATERIALIZED (SELECT id FROM nodes WHERE id = :node FOR NO KEY UPDATE SKIP LOCKED),
heartbeat AS (
  UPDATE nodes AS n SET seen_at = m.at, lease_seconds = :lease_seconds, lag_seconds = :lag_seconds,
    fired_per_second = :fired_per_second, capacity = :capacity, deliveries = :deliveries
  FROM known AS k, moment AS m WHERE n.id = k.id
),
first_heartbeat AS (
  INSERT INTO nodes (id, name, roles, version, started_at, seen_at, lease_seconds, lag_seconds, fired_per_second, capacity,
    deliveries)
  SELECT :node, :name, :roles, :version, at, at, :lease_seconds, :lag_seconds, :fired_per_second, :capacity,
    :deliveries FROM moment
  WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE id = :node)
  ON CONFLICT DO NOTHING
),
chosen AS MATERIALIZED (
  SELECT p.partition FROM partitions AS p, moment AS m
  WHERE p.owner = :node OR (p.partition = ANY(m.wanted) AND (
    p.owner IS NULL OR p.lease_until <= m.at OR p.lease_until > m.at + make_interval(secs => p.lease_seconds * 1.5)))
),
locked AS MATERIALIZED (
  SELECT p.partition FROM chosen AS c JOIN partitions AS p ON p.partition = c.partition, moment AS m
  -- Checked again, because another node may have taken the partition since the snapshot of this statement.
  WHERE p.owner = :node OR p.owner IS NULL OR p.lease_until <= m.at
    OR p.lease_until > m.at + make_interval(secs => p.lease_seconds * 1.5)
  FOR UPDATE OF p SKIP LOCKED
),
changed AS (
  UPDATE partitions AS p SET
    owner = CASE WHEN p.partition = ANY(m.wanted) THEN :node::uuid END,
    epoch = p.epoch + CASE WHEN p.partition = ANY(m.wanted) AND p.owner IS DISTINCT FROM :node THEN 1 ELSE 0 END,
    lease_until = CASE WHEN p.partition = ANY(m.wanted) THEN m.at + make_interval(secs => :lease_seconds) END,
    lease_seconds = :lease_seconds
  FROM locked AS l, moment AS m WHERE p.partition = l.partition
  RETURNING p.partition, p.owner, p.epoch
),
live AS MATERIALIZED (
  SELECT n.id, n.capacity, n.lag_seconds FROM nodes AS n, moment AS m WHERE strpos(n.roles, 'scheduler') > 0
    AND n.seen_at > m.at - make_interval(secs => n.lease_seconds)
    AND n.seen_at < m.at + make_interval(secs => n.lease_seconds)
)
SELECT m.at AS moment,
  ARRAY(SELECT partition FROM changed WHERE owner IS NOT NULL ORDER BY partition) AS owned,
  ARRAY(SELECT epoch FROM changed WHERE owner IS NOT NULL ORDER BY partition) AS epochs,
  ARRAY(SELECT partition FROM chosen EXCEPT SELECT partition FROM locked) AS locked,
  ARRAY(SELECT id FROM live ORDER BY id) AS live,
  ARRAY(SELECT capacity FROM live ORDER BY id) AS capacities,
  ARRAY(SELECT lag_seconds FROM live ORDER BY id) AS lags,
  coalesce(extract(epoch FROM (SELECT max(seen_at) FROM nodes) - m.at)::double precision, 0) AS clock_back_seconds
FROM moment AS m;

-- name: partition_release
-- Release all partitions of a node, except locked ones, whose leases expire.
WITH owned AS MATERIALIZED (SELECT partition FROM partitions WHERE owner = :node FOR UPDATE SKIP LOCKED)
UPDATE partitions AS p SET owner = NULL, lease_until = NULL FROM owned AS o WHERE p.partition = o.partition AND p.owner = :node;

-- name: partition_list
-- All partitions with their owners.
SELECT partition, owner, epoch, lease_until FROM partitions ORDER BY partition;

-- name: node_delete
-- Delete a node. If its row is locked, it is pruned later.
DELETE FROM nodes WHERE id IN (SELECT id FROM nodes WHERE id = :node FOR UPDATE SKIP LOCKED);

-- name: node_list
-- All nodes, and the current time.
SELECT coalesce(:now::timestamptz, now()) AS moment, n.* FROM nodes AS n ORDER BY started_at, id;

-- name: node_prune
-- Delete nodes without a recent heartbeat.
DELETE FROM nodes WHERE id IN (
  SELECT id FROM nodes WHERE seen_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :unseen_seconds)
  FOR UPDATE SKIP LOCKED);
