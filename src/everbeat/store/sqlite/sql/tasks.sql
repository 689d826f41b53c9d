-- name: task_claim
-- Take ready tasks under a lease; attempts are counted here, so that a task that kills its worker still dies in the end.
UPDATE tasks SET state = 'running', attempt = attempt + 1, fence = fence + 1, lease_owner = :worker,
  lease_until = :now + CAST(:lease_seconds * 1000000 AS INTEGER), started_at = :now
WHERE id IN (
  SELECT id FROM tasks WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(:queues))
  ORDER BY priority, run_at, id LIMIT :limit
) AND state = 'ready'
RETURNING id, tenant_id, queue, type, payload, attempt, fence, lease_until, schedule_id, scheduled_for;

-- name: task_complete_insert
-- A running task's row in history, under its fence.
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at,
  priority, state, attempt, max_attempts, labels, worker, fence, created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, origin, schedule_id, scheduled_for, run_at, priority, 'completed',
  attempt, max_attempts, labels, lease_owner, fence, created_at, started_at, :now
FROM tasks WHERE id = :id AND fence = :fence AND state = 'running';

-- name: task_complete
-- The live row goes when its history is written.
DELETE FROM tasks WHERE id = :id AND fence = :fence AND state = 'running' RETURNING id;

-- name: task_reap
-- Put running tasks whose lease has expired back to ready.
UPDATE tasks SET state = 'ready', lease_owner = NULL, lease_until = NULL
WHERE id IN (SELECT id FROM tasks WHERE state = 'running' AND lease_until < :now ORDER BY lease_until LIMIT :limit)
  AND state = 'running';

-- name: task_depths
-- Live tasks by queue and state.
SELECT queue, state, count(*) AS count FROM tasks GROUP BY queue, state ORDER BY queue, state;
