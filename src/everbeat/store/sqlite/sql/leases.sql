-- Differs from postgres: a verb is several statements in one immediate transaction, because SQLite has no data-modifying
-- common table expressions. No other writer can interfere. Batches are passed as JSON, with ids in hex.

-- fragment: flow_columns
-- The columns that identify a flow of a queue.
tenant_id, priority, fair_key, type

-- fragment: microseconds(seconds)
-- A duration, rounded like an interval of PostgreSQL.
CAST(round(seconds * 1000000) AS INTEGER)

-- fragment: attempt_deadline(started_at, timeout_seconds, first_started_at, total_seconds)
-- When an attempt must have ended: after its timeout, and before the time limit of all attempts of the task.
min(started_at + {{microseconds(timeout_seconds)}},
  coalesce(first_started_at + {{microseconds(total_seconds)}}, 9223372036854775807))

-- fragment: lease_end(at, seconds, deadline)
-- The end of a lease that is granted or renewed: at most the deadline of the attempt.
min(at + {{microseconds(seconds)}}, deadline)

-- fragment: became_ready(due_at, written_at, again_at)
-- When a ready task became ready: when it was due, written, released from hold, or put back after an attempt.
max(due_at, written_at, coalesce(again_at, 0))

-- fragment: seconds_between(since, until)
-- The seconds from one time to a later one.
((until - since) / 1000000.0)

-- fragment: deadline_of_task
-- The deadline of a running task. Tasks that processes of the first version have claimed have no deadline_at.
coalesce(t.deadline_at, t.started_at + {{microseconds(t.timeout_seconds)}})

-- name: task_flows
-- Flows of a queue with ready tasks, after the given flow, of tenants up to last_tenant_id. A loose index scan: one index seek
-- for each flow, however many tasks it has.
-- Differs from postgres: SQLite seeks to the first entry that equals the bound and scans on from there, so the bound also
-- contains the latest possible time. It seeks by columns of another row only if unary pluses hide their types.
-- returns: tenant_id cached_uuid
WITH RECURSIVE flow (first_row) AS (
  SELECT (
    SELECT rowid FROM tasks
    WHERE state = 'ready' AND queue = :queue AND tenant_id <= :last_tenant_id
      AND ({{flow_columns}}, run_at) > ({{:flow_columns}}, 9223372036854775807)
    ORDER BY {{flow_columns}} LIMIT 1)
  UNION ALL
  SELECT (
    SELECT t.rowid FROM tasks AS t
    WHERE t.state = 'ready' AND t.queue = :queue AND t.tenant_id <= :last_tenant_id
      AND ({{t.flow_columns}}, t.run_at)
        > (+h.tenant_id, +h.priority, +h.fair_key, +h.type, 9223372036854775807)
    ORDER BY {{t.flow_columns}} LIMIT 1)
  FROM flow CROSS JOIN tasks AS h ON h.rowid = flow.first_row
  LIMIT :limit
)
SELECT t.queue, {{t.flow_columns}} FROM flow CROSS JOIN tasks AS t ON t.rowid = flow.first_row;

-- name: task_ready_queues
-- The queues with ready tasks, and the tenants of these tasks, after the given queue and tenant. A loose index scan: one index
-- seek for each pair, however many tasks it has.
-- Differs from postgres: for the same reason as in task_flows, the bound also contains the latest possible priority.
-- returns: tenant_id cached_uuid
WITH RECURSIVE ready (first_row) AS (
  SELECT (
    SELECT rowid FROM tasks
    WHERE state = 'ready' AND (queue, tenant_id, priority) > (:queue, :tenant_id, 9223372036854775807)
    ORDER BY queue, {{flow_columns}} LIMIT 1)
  UNION ALL
  SELECT (
    SELECT t.rowid FROM tasks AS t
    WHERE t.state = 'ready' AND (t.queue, t.tenant_id, t.priority) > (+h.queue, +h.tenant_id, 9223372036854775807)
    ORDER BY t.queue, {{t.flow_columns}} LIMIT 1)
  FROM ready CROSS JOIN tasks AS h ON h.rowid = ready.first_row
  LIMIT :limit
)
SELECT t.queue, t.tenant_id FROM ready CROSS JOIN tasks AS t ON t.rowid = ready.first_row;

-- name: task_claim_tenants
-- Tenants with their limits of running tasks.
-- returns: id uuid
SELECT id, max_running FROM tenants WHERE id IN (SELECT unhex(value) FROM json_each(:tenant_ids));

-- name: task_claim_running
-- The number of running tasks of a tenant, including those with an expired lease that have not been ended yet.
-- returns: tuples
SELECT count(*) FROM tasks WHERE tenant_id = :tenant_id AND state = 'running';

-- name: task_claim_oldest
-- When the oldest ready tasks of a flow were due.
-- returns: tuples
SELECT run_at, id FROM tasks
WHERE queue = :queue AND ({{flow_columns}}) = ({{:flow_columns}})
  AND state = 'ready'
ORDER BY run_at, id LIMIT :limit;

-- name: task_claim_pick
-- The oldest ready tasks of a flow.
-- returns: tuples
SELECT rowid, run_at, id, type, queue, payload, payload_ref, attempt + 1, max_attempts, fence + 1, scheduled_for,
  schedule_name, schedule_id, origin, timeout_seconds, traceparent, first_started_at, {{became_ready(run_at, created_at, ready_at)}}
FROM tasks
WHERE queue = :queue AND ({{flow_columns}}) = ({{:flow_columns}})
  AND state = 'ready'
ORDER BY run_at, id LIMIT :limit;

-- name: task_claim_picks
-- The oldest ready tasks of several flows, up to the limit for each. One statement, because each statement makes the thread
-- release and reacquire the GIL.
-- returns: tuples
SELECT l.key, t.rowid, t.run_at, t.id, t.type, t.queue, t.payload, t.payload_ref, t.attempt + 1, t.max_attempts, t.fence + 1,
  t.scheduled_for, t.schedule_name, t.schedule_id, t.origin, t.timeout_seconds, t.traceparent, t.first_started_at,
  {{became_ready(t.run_at, t.created_at, t.ready_at)}}
FROM json_each(:queue_types) AS l
CROSS JOIN tasks AS t ON t.rowid IN (
  SELECT o.rowid FROM tasks AS o
  WHERE o.queue = l.value ->> 0 AND o.tenant_id = unhex(l.value ->> 1) AND o.priority = l.value ->> 2
    AND o.fair_key = l.value ->> 3 AND o.type = l.value ->> 4 AND o.state = 'ready'
  ORDER BY o.run_at, o.id LIMIT :limit);

-- name: task_claim_paused
-- The active pauses, by the ids of their tenants and their queues.
-- returns: tuples
SELECT tenant_id, queue FROM pauses WHERE ended_at IS NULL AND (until_at IS NULL OR until_at > :now);

-- name: task_claim_triggered
-- The oldest ready tasks of manual triggers in paused queues. Tasks of the excluded tenants stay ready.
-- returns: tuples
SELECT t.rowid, t.run_at, t.id, t.type, t.queue, t.payload, t.payload_ref, t.attempt + 1, t.max_attempts, t.fence + 1,
  t.scheduled_for, t.schedule_name, t.schedule_id, t.origin, t.timeout_seconds, t.traceparent, t.first_started_at,
  {{became_ready(t.run_at, t.created_at, t.ready_at)}}, t.tenant_id
FROM tasks AS t
WHERE t.state = 'ready' AND t.origin = 'trigger' AND t.queue IN (SELECT value FROM json_each(:queues))
  AND (:tenant_id IS NULL OR t.tenant_id = :tenant_id)
  AND (:types IS NULL OR t.type IN (SELECT value FROM json_each(:types)))
  AND t.tenant_id NOT IN (SELECT unhex(value) FROM json_each(:excluded)) AND {{is_paused(t.tenant_id, t.queue, :now)}}
ORDER BY t.run_at, t.id LIMIT :limit;

-- fragment: claim_deadline
-- The deadline of an attempt that begins with this claim.
{{attempt_deadline(:now, timeout_seconds, coalesce(first_started_at, :now), :total_seconds)}}

-- name: task_claim
-- Claim ready tasks under a lease. The attempt is counted at the claim, so that a task that crashes its worker cannot be
-- retried forever.
UPDATE tasks SET state = 'running', attempt = attempt + 1, fence = fence + 1, lease_owner = :worker,
  lease_seconds = :lease_seconds, started_at = :now, first_started_at = coalesce(first_started_at, :now),
  deadline_at = {{claim_deadline}}, lease_until = {{lease_end(:now, :lease_seconds, {{claim_deadline}})}},
  progress_fraction = NULL, progress_message = NULL, response = NULL
WHERE rowid IN (SELECT value FROM json_each(:rows)) AND state = 'ready';

-- name: task_heartbeat_find
-- Tasks whose leases are valid, and the new ends of the leases: at most the deadline, and unchanged after a cancel request.
-- returns: tuples
SELECT t.rowid, t.tenant_id, r.value ->> 0, t.id, t.fence, t.cancel_requested, t.attempt, t.lease_owner, t.log_bytes,
  CASE WHEN t.cancel_requested THEN t.lease_until
    ELSE {{lease_end(:now, t.lease_seconds, {{deadline_of_task}})}} END
FROM json_each(:leases) AS r
CROSS JOIN tasks AS t ON t.id = unhex(r.value ->> 1) AND t.tenant_id = coalesce(unhex(r.value ->> 0), t.tenant_id) AND t.fence = r.value ->> 2
-- The plus, here and below, prevents the use of the index on lease_until. The planner would use it for each lease if its
-- statistics were collected while no task was running.
WHERE t.state = 'running' AND +t.lease_until > :now;

-- name: task_heartbeat
-- Renew a lease, and store the progress.
UPDATE tasks SET lease_until = ?2, progress_fraction = coalesce(?3, progress_fraction),
  progress_message = coalesce(?4, progress_message), log_bytes = log_bytes + ?5
WHERE rowid = ?1 AND state = 'running';

-- name: task_log_insert
-- Insert a log line of an attempt.
INSERT INTO task_log (task_id, id, tenant_id, at, attempt, worker, text) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: task_complete_insert
-- Insert the history rows of running tasks with valid leases, as completed.
-- returns: tuples
INSERT INTO task_history (id, tenant_id, {{copied_columns}}, run_at, state, attempt, worker, fence, traceparent,
  progress_fraction, progress_message, result, response, outcome, created_at, started_at, finished_at)
SELECT t.id, t.tenant_id, {{t.copied_columns}}, t.run_at, 'completed', t.attempt, t.lease_owner, t.fence,
  t.traceparent, t.progress_fraction, t.progress_message, r.value ->> 3, coalesce(r.value ->> 4, t.response),
  'completed', t.created_at, t.started_at, :now
FROM json_each(:results) AS r
CROSS JOIN tasks AS t ON t.id = unhex(r.value ->> 1) AND t.tenant_id = coalesce(unhex(r.value ->> 0), t.tenant_id) AND t.fence = r.value ->> 2
WHERE t.state = 'running' AND +t.lease_until > :now
RETURNING id, fence, schedule_id, tenant_id, queue, type, attempt, worker, {{seconds_between(started_at, finished_at)}},
  timeout_seconds, traceparent;

-- name: task_complete
-- Delete the live rows after the history rows are written.
DELETE FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND state = 'running';

-- name: task_completed
-- The tasks among these that were completed earlier with the same fence.
-- returns: tuples
SELECT h.id, h.fence FROM json_each(:leases) AS r
CROSS JOIN task_history AS h ON h.id = unhex(r.value ->> 1) AND h.tenant_id = coalesce(unhex(r.value ->> 0), h.tenant_id) AND h.fence = r.value ->> 2
WHERE h.state = 'completed';

-- name: task_queues
-- The queues of tasks, live or finished.
-- returns: id uuid
SELECT id, queue FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids))
UNION ALL
SELECT id, queue FROM task_history WHERE id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: task_targets
-- The targets of live tasks.
-- returns: id uuid
SELECT id, target FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: task_accept
-- Keep a running task that its destination has accepted, and store its response, if there is one. Its lease ends after the
-- given time without a heartbeat, and at the latest at its deadline.
-- returns: id uuid, lease_until time, cancel_requested bool
UPDATE tasks AS t SET lease_seconds = :lease_seconds, response = coalesce(:response, response),
  lease_until = CASE WHEN t.cancel_requested THEN t.lease_until
    ELSE {{lease_end(:now, :lease_seconds, {{deadline_of_task}})}} END
WHERE t.id = :id AND t.tenant_id = coalesce(:tenant_id, t.tenant_id) AND t.fence = :fence AND t.state = 'running'
  AND +t.lease_until > :now
RETURNING id, fence, lease_until, cancel_requested;

-- name: task_running
-- Tasks whose leases are valid, with the columns that the retry decision needs.
-- returns: id uuid, tenant_id cached_uuid, cancel_requested bool, deadline_at time, first_started_at time
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  {{deadline_of_task}} AS deadline_at,
  coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM json_each(:leases) AS r
CROSS JOIN tasks AS t ON t.id = unhex(r.value ->> 1) AND t.tenant_id = coalesce(unhex(r.value ->> 0), t.tenant_id) AND t.fence = r.value ->> 2
WHERE t.state = 'running' AND +t.lease_until > :now;

-- name: task_expired
-- Running tasks with an expired lease.
-- returns: id uuid, tenant_id cached_uuid, cancel_requested bool, deadline_at time, first_started_at time
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  {{deadline_of_task}} AS deadline_at, coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM tasks AS t WHERE t.state = 'running' AND t.lease_until <= :now ORDER BY t.lease_until LIMIT :limit;

-- fragment: lease_is_ahead(at)
-- Whether the lease of the task t ends later than any lease that is granted now: it was granted or renewed before the clock was
-- set back. The lease_seconds of tasks that processes of the first version have claimed are not known.
t.state = 'running' AND t.deadline_at IS NOT NULL AND t.lease_until > at + {{microseconds(t.lease_seconds * 1.5)}}

-- name: task_leases_ahead
-- Running tasks with a lease that ends later than it can by this clock.
-- returns: id uuid
SELECT t.id FROM tasks AS t WHERE t.state = 'running' AND t.lease_until > :now AND {{lease_is_ahead(:now)}}
ORDER BY t.lease_until DESC LIMIT :limit;

-- name: task_shorten_leases
-- Let these leases end after their length from now.
UPDATE tasks AS t SET lease_until = :now + {{microseconds(t.lease_seconds)}}
WHERE t.id IN (SELECT unhex(value) FROM json_each(:ids)) AND {{lease_is_ahead(:now)}};

-- name: task_end_attempt
-- Store an attempt that did not end its task.
-- returns: task_id uuid
INSERT INTO attempts (task_id, tenant_id, fence, attempt, worker, started_at, ended_at, outcome, error, response)
SELECT id, tenant_id, fence, attempt, lease_owner, started_at, ?5, ?6, ?9, coalesce(?10, response) FROM tasks
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4 AND NOT cancel_requested
RETURNING task_id, worker, {{seconds_between(started_at, ended_at)}} AS ran_seconds;

-- name: task_end
-- Put back a task whose attempt did not end it. A released task is not charged an attempt.
-- A task that got a cancel request after it was read is not put back. The caller has to decide again.
-- returns: {{change_columns}}
UPDATE tasks SET state = ?7, run_at = coalesce(?8, run_at), attempt = attempt - iif(?6 = 'released', 1, 0),
  error = coalesce(?9, error), lease_owner = NULL, lease_until = NULL, ready_at = ?5
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4 AND NOT cancel_requested
RETURNING {{change_columns}}, fence, timeout_seconds, traceparent;

-- name: task_finish_dead_letter
-- Insert the dead letter of a task, if its attempt ended it as dead.
INSERT INTO dead_letters (task_id, tenant_id, {{copied_columns}}, attempt, reason, error, worker, created_at, died_at)
SELECT id, tenant_id, {{copied_columns}}, attempt, coalesce(?11, ?6), coalesce(?9, error), lease_owner, created_at, ?5
FROM tasks
WHERE ?7 = 'dead' AND id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4;

-- name: task_finish_insert
-- Insert the history row of a task that its attempt ended without completing it.
INSERT INTO task_history (id, tenant_id, {{copied_columns}}, run_at, state, attempt, worker, fence, traceparent,
  progress_fraction, progress_message, error, reason, response, outcome, created_at, started_at, finished_at)
SELECT id, tenant_id, {{copied_columns}}, run_at, ?7, attempt, lease_owner, fence, traceparent, progress_fraction,
  progress_message, coalesce(?9, error), ?11, coalesce(?10, response), ?6, created_at, started_at, ?5
FROM tasks
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4;

-- name: task_finish
-- Delete the live row after the history row is written.
-- returns: id uuid, tenant_id cached_uuid, schedule_id uuid
DELETE FROM tasks
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4
RETURNING id, fence, schedule_id, tenant_id, queue, type, attempt, lease_owner AS worker,
  {{seconds_between(started_at, ?5)}} AS ran_seconds, timeout_seconds, traceparent;

-- name: task_ended
-- How attempts with these fences were ended earlier.
-- returns: id uuid
SELECT a.task_id AS id, a.fence, a.outcome, NULL AS state FROM json_each(:leases) AS r
CROSS JOIN attempts AS a
  ON a.task_id = unhex(r.value ->> 1) AND a.tenant_id = coalesce(unhex(r.value ->> 0), a.tenant_id) AND a.fence = r.value ->> 2
UNION ALL
SELECT h.id, h.fence, h.outcome, h.state FROM json_each(:leases) AS r
CROSS JOIN task_history AS h ON h.id = unhex(r.value ->> 1) AND h.tenant_id = coalesce(unhex(r.value ->> 0), h.tenant_id) AND h.fence = r.value ->> 2
WHERE h.outcome IS NOT NULL;
