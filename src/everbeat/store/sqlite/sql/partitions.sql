-- name: partition_renew
-- Renew owned partitions that are wanted, release owned ones that are not, and take wanted ones that are free or expired.
-- A lease that ends later than any valid lease counts as expired: the clock was set back. A node whose version is too old
-- for the schema wants none.
-- returns: owner uuid
WITH wanted(partition) AS MATERIALIZED (
  SELECT value FROM json_each(:wanted) WHERE :schema >= (SELECT minimum FROM everbeat_schema)
)
UPDATE partitions SET
  owner = iif(partition IN (SELECT partition FROM wanted), :node, NULL),
  epoch = epoch + iif(partition IN (SELECT partition FROM wanted) AND owner IS NOT :node, 1, 0),
  lease_until = iif(partition IN (SELECT partition FROM wanted), :now + {{microseconds(:lease_seconds)}}, NULL),
  lease_seconds = :lease_seconds
WHERE owner = :node OR (partition IN (SELECT partition FROM wanted) AND (
  owner IS NULL OR lease_until <= :now OR lease_until > :now + {{microseconds(lease_seconds * 1.5)}}))
RETURNING partition, owner, epoch;

-- name: partition_renew_heartbeat
-- Record a heartbeat of a node.
INSERT INTO nodes (id, name, roles, version, started_at, seen_at, lease_seconds, lag_seconds, fired_per_second,
  capacity, deliveries)
VALUES (:node, :name, :roles, :version, :now, :now, :lease_seconds, :lag_seconds, :fired_per_second, :capacity,
  :deliveries)
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, lease_seconds = excluded.lease_seconds,
  lag_seconds = excluded.lag_seconds, fired_per_second = excluded.fired_per_second, capacity = excluded.capacity,
  deliveries = excluded.deliveries;

-- name: partition_renew_live
-- The live scheduler nodes.
-- returns: id uuid
SELECT id, capacity, lag_seconds FROM nodes
WHERE instr(roles, 'scheduler') > 0 AND seen_at > :now - lease_seconds * 1000000 AND seen_at < :now + lease_seconds * 1000000;

-- name: partition_renew_newest
-- The time of the newest heartbeat. It is in the future if the clock was set back.
-- returns: newest_at time
SELECT max(seen_at) AS newest_at FROM nodes;

-- name: partition_release
-- Release all partitions of a node.
UPDATE partitions SET owner = NULL, lease_until = NULL WHERE owner = :node;

-- name: partition_list
-- All partitions with their owners.
-- returns: owner uuid, lease_until time
SELECT partition, owner, epoch, lease_until FROM partitions ORDER BY partition;

-- name: node_delete
-- Delete a node.
DELETE FROM nodes WHERE id = :node;

-- name: node_list
-- All nodes.
-- returns: id uuid, started_at time, seen_at time
SELECT * FROM nodes ORDER BY started_at, id;

-- name: node_prune
-- Delete nodes without a recent heartbeat.
DELETE FROM nodes WHERE seen_at < :now - :unseen_seconds * 1000000;
