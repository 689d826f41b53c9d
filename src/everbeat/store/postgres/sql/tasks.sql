-- name: task_claim
-- Take ready tasks under a lease; attempts are counted here, so that a task that kills its worker still dies in the end.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
picked AS MATERIALIZED (
  -- One short index scan for each queue: asked for all queues at once, the planner would sort everything that is ready.
  SELECT t.id FROM (SELECT DISTINCT unnest(:queues::text[]) AS queue) AS q
  CROSS JOIN LATERAL (
    SELECT id, priority, run_at FROM tasks WHERE tasks.queue = q.queue AND state = 'ready'
    ORDER BY priority, run_at, id LIMIT :limit FOR UPDATE SKIP LOCKED
  ) AS t
  ORDER BY t.priority, t.run_at, t.id LIMIT :limit
)
UPDATE tasks AS t SET state = 'running', attempt = t.attempt + 1, fence = t.fence + 1, lease_owner = :worker,
  lease_until = m.at + make_interval(secs => :lease_seconds), started_at = m.at
FROM moment AS m WHERE t.id = ANY(ARRAY(SELECT id FROM picked)) AND t.state = 'ready'
RETURNING t.id, t.tenant_id, t.queue, t.type, t.payload, t.attempt, t.fence, t.lease_until, t.schedule_id, t.scheduled_for;

-- name: task_complete
-- Move running tasks to history under their fence.
WITH finished AS (
  DELETE FROM tasks AS t USING unnest(:ids::uuid[], :fences::bigint[]) AS r(id, fence)
  WHERE t.id = r.id AND t.fence = r.fence AND t.state = 'running'
  RETURNING t.*
)
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at,
  priority, state, attempt, max_attempts, labels, worker, fence, created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, 'completed',
  attempt, max_attempts, labels, lease_owner, fence, created_at, started_at, coalesce(:now::timestamptz, now())
FROM finished
RETURNING id;

-- name: task_reap
-- Put running tasks whose lease has expired back to ready.
-- A common table expression and not a subquery, which the planner may run more than once, past the limit.
WITH expired AS MATERIALIZED (
  SELECT id FROM tasks WHERE state = 'running' AND lease_until < coalesce(:now::timestamptz, now())
  ORDER BY lease_until LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE tasks AS t SET state = 'ready', lease_owner = NULL, lease_until = NULL
WHERE t.id = ANY(ARRAY(SELECT id FROM expired)) AND t.state = 'running';

-- name: task_depths
-- Live tasks by queue and state.
SELECT queue, state, count(*) AS count FROM tasks GROUP BY queue, state ORDER BY queue, state;
