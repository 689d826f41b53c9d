-- fragment: worker_columns
-- The columns of a worker.
-- returns: id uuid, tenant_id uuid, started_at time, last_seen_at time
id, tenant_id, worker, queues, types, concurrency, version, node, state, lease_seconds, started_at, last_seen_at

-- name: worker_write
-- Write a worker that has claimed. The row may be newer, if another node has seen the worker meanwhile.
INSERT INTO workers (id, tenant_id, worker, queues, types, concurrency, version, node, state, lease_seconds, started_at,
  last_seen_at)
VALUES (:id, :tenant_id, :worker, :queues, :types, :concurrency, :version, :node, :state, :lease_seconds, :seen_at, :seen_at)
ON CONFLICT (id) DO UPDATE SET queues = excluded.queues, types = excluded.types, concurrency = excluded.concurrency,
  version = excluded.version, node = excluded.node, state = excluded.state, lease_seconds = excluded.lease_seconds,
  last_seen_at = excluded.last_seen_at
WHERE workers.last_seen_at <= excluded.last_seen_at;

-- name: worker_write_seen
-- Write the time and the state of a worker that has sent only heartbeats.
UPDATE workers SET last_seen_at = :seen_at, state = :state, node = :node WHERE id = :id AND last_seen_at <= :seen_at;

-- name: worker_list
-- Workers of a tenant and fleets, the last seen first.
-- returns: {{worker_columns}}
SELECT {{worker_columns}} FROM workers
WHERE (tenant_id = :tenant_id OR tenant_id IS NULL) AND (last_seen_at, id) < (:before_at, :before_id)
  AND (:queue IS NULL OR EXISTS (SELECT 1 FROM json_each(queues) WHERE value = :queue))
ORDER BY last_seen_at DESC, id DESC LIMIT :limit;

-- name: worker_queues
-- The queues that workers of a tenant and fleets have asked for, with the number of live workers and the last one. With max(),
-- SQLite takes the other columns from the row of the maximum.
-- returns: last_seen_at time
SELECT q.value AS queue, max(w.last_seen_at) AS last_seen_at, w.worker AS last_worker,
  count(*) FILTER (WHERE w.state = 'live'
    AND w.last_seen_at > :now - {{microseconds(max(:silent_seconds, w.lease_seconds))}}) AS workers
FROM workers AS w, json_each(w.queues) AS q
WHERE w.tenant_id = :tenant_id OR w.tenant_id IS NULL
GROUP BY q.value ORDER BY q.value;

-- name: worker_running
-- The number of running tasks of a tenant by worker.
-- Without statistics, the planner would read all live tasks of the tenant.
SELECT lease_owner AS worker, count(*) AS count FROM tasks INDEXED BY tasks_running_of_tenant
WHERE state = 'running' AND tenant_id = :tenant_id AND lease_owner IN (SELECT value FROM json_each(:workers))
GROUP BY lease_owner;

-- name: worker_prune
-- Delete workers that were not seen for a while, and of each tenant those beyond the last seen ones that are kept.
DELETE FROM workers WHERE id IN (
  SELECT id FROM (
    SELECT id, last_seen_at, row_number() OVER (PARTITION BY tenant_id ORDER BY last_seen_at DESC, id DESC) AS position
    FROM workers)
  WHERE last_seen_at < :now - {{microseconds(:unseen_seconds)}} OR position > :keep LIMIT :limit);
