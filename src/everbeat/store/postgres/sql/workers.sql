-- fragment: worker_columns
-- The columns of a worker.
id, tenant_id, worker, queues, types, concurrency, version, node, state, lease_seconds, started_at, last_seen_at

-- name: worker_write
-- Write workers that have claimed. A row may be newer, if another node has seen the worker meanwhile. Rows are written in the
-- order of the arrays, which are sorted, so that two nodes cannot deadlock.
INSERT INTO workers AS w (id, tenant_id, worker, queues, types, concurrency, version, node, state, lease_seconds, started_at,
  last_seen_at)
SELECT u.id, u.tenant_id, u.worker, u.queues, u.types, u.concurrency, u.version, :node, u.state, u.lease_seconds,
  m.at - make_interval(secs => u.age_seconds), m.at - make_interval(secs => u.age_seconds)
FROM (SELECT coalesce(:now::timestamptz, now()) AS at) AS m,
  unnest(:ids::uuid[], :tenant_ids::uuid[], :workers::text[], :queues::text[], :types::text[], :concurrencies::integer[],
    :versions::text[], :states::text[], :leases_seconds::double precision[], :ages_seconds::double precision[])
  AS u(id, tenant_id, worker, queues, types, concurrency, version, state, lease_seconds, age_seconds)
ON CONFLICT (id) DO UPDATE SET queues = excluded.queues, types = excluded.types, concurrency = excluded.concurrency,
  version = excluded.version, node = excluded.node, state = excluded.state, lease_seconds = excluded.lease_seconds,
  last_seen_at = excluded.last_seen_at
WHERE w.last_seen_at <= excluded.last_seen_at;

-- name: worker_write_seen
-- Write the time and the state of workers that have sent only heartbeats. A locked row is skipped until the next heartbeat.
WITH seen AS (
  SELECT w.id, u.state, coalesce(:now::timestamptz, now()) - make_interval(secs => u.age_seconds) AS at
  FROM workers AS w
  JOIN unnest(:ids::uuid[], :states::text[], :ages_seconds::double precision[]) AS u(id, state, age_seconds) ON u.id = w.id
  FOR UPDATE OF w SKIP LOCKED
)
UPDATE workers AS w SET last_seen_at = s.at, state = s.state, node = :node
FROM seen AS s WHERE w.id = s.id AND w.last_seen_at <= s.at;

-- name: worker_list
-- Workers of a tenant and fleets, the last seen first.
SELECT {{worker_columns}} FROM workers
WHERE (tenant_id = :tenant_id OR tenant_id IS NULL) AND (last_seen_at, id) < (:before_at, :before_id)
  AND (:queue::text IS NULL OR queues::jsonb ? :queue)
ORDER BY last_seen_at DESC, id DESC LIMIT :limit;

-- name: worker_queues
-- The queues that workers of a tenant and fleets have asked for, with the number of live workers and the last one.
SELECT q.queue, max(w.last_seen_at) AS last_seen_at, (array_agg(w.worker ORDER BY w.last_seen_at DESC))[1] AS last_worker,
  count(*) FILTER (WHERE w.state = 'live' AND w.last_seen_at > coalesce(:now::timestamptz, now())
    - make_interval(secs => greatest(:silent_seconds::double precision, w.lease_seconds))) AS workers
FROM workers AS w CROSS JOIN LATERAL jsonb_array_elements_text(w.queues::jsonb) AS q(queue)
WHERE w.tenant_id = :tenant_id OR w.tenant_id IS NULL
GROUP BY q.queue ORDER BY q.queue;

-- name: worker_running
-- The number of running tasks of a tenant by worker.
SELECT lease_owner AS worker, count(*) AS count FROM tasks
WHERE state = 'running' AND tenant_id = :tenant_id AND lease_owner = ANY(:workers::text[])
GROUP BY lease_owner;

-- name: worker_prune
-- Delete workers that were not seen for a while, and of each tenant those beyond the last seen ones that are kept.
DELETE FROM workers WHERE id IN (
  SELECT id FROM (
    SELECT id, last_seen_at, row_number() OVER (PARTITION BY tenant_id ORDER BY last_seen_at DESC, id DESC) AS position
    FROM workers) AS ranked
  WHERE last_seen_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :unseen_seconds) OR position > :keep
  LIMIT :limit);
