-- Differs from postgres: a verb is several statements in one immediate transaction, because SQLite has no data-modifying
-- common table expressions. Nothing else can write in between. Batches come as JSON, with ids in hex.

-- name: task_submit
-- A new task: ready, or scheduled if its time is to come.
INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, max_attempts, retry, timeout_seconds, labels, fair_key, traceparent, created_at, lease_owner,
  lease_seconds,
  attempt, fence, started_at, first_started_at, deadline_at, lease_until)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: task_key_insert
-- Take an idempotency key for a day; an expired one gives way.
INSERT INTO task_keys (tenant_id, key, task_id, fingerprint, expires_at) VALUES (?1, ?2, ?3, ?4, ?5 + 86400000000)
ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
  expires_at = excluded.expires_at
WHERE task_keys.expires_at <= ?5;

-- name: task_key_find
-- What keys stand for that have not expired.
SELECT k.tenant_id, k.key, k.task_id, k.fingerprint
FROM json_each(:keys) AS n
CROSS JOIN task_keys AS k ON k.tenant_id = unhex(n.value ->> 0) AND k.key = n.value ->> 1
WHERE k.expires_at > :now;

-- name: task_flows
-- Flows of a queue with ready tasks, of tenants up to the last one, after the place given. Found by hopping from one to the
-- next: one index seek each, however many tasks lie between.
-- Differs from postgres: SQLite seeks to the first entry that equals such a bound and walks on from there, so the bound has the
-- latest time there is; and it seeks by columns of another row only if the pluses hide their types.
WITH RECURSIVE hop (place) AS (
  SELECT (
    SELECT rowid FROM tasks
    WHERE state = 'ready' AND queue = :queue AND tenant_id <= :last_tenant_id
      AND (tenant_id, priority, fair_key, type, run_at) > (:tenant_id, :priority, :fair_key, :type, 9223372036854775807)
    ORDER BY tenant_id, priority, fair_key, type LIMIT 1)
  UNION ALL
  SELECT (
    SELECT t.rowid FROM tasks AS t
    WHERE t.state = 'ready' AND t.queue = :queue AND t.tenant_id <= :last_tenant_id
      AND (t.tenant_id, t.priority, t.fair_key, t.type, t.run_at)
        > (+h.tenant_id, +h.priority, +h.fair_key, +h.type, 9223372036854775807)
    ORDER BY t.tenant_id, t.priority, t.fair_key, t.type LIMIT 1)
  FROM hop CROSS JOIN tasks AS h ON h.rowid = hop.place
  LIMIT :limit
)
SELECT t.queue, t.tenant_id, t.priority, t.fair_key, t.type FROM hop CROSS JOIN tasks AS t ON t.rowid = hop.place;

-- name: task_claim_tenants
-- Tenants that may run only so many at a time.
SELECT id, max_running FROM tenants WHERE id IN (SELECT unhex(value) FROM json_each(:tenant_ids));

-- name: task_claim_running
-- How many tasks of a tenant are running, also those whose lease has run out and which nobody has ended yet.
SELECT count(*) FROM tasks WHERE tenant_id = :tenant_id AND state = 'running';

-- name: task_claim_oldest
-- When the oldest ready tasks of a lane were due.
SELECT run_at, id FROM tasks
WHERE queue = :queue AND tenant_id = :tenant_id AND priority = :priority AND fair_key = :fair_key AND type = :type
  AND state = 'ready'
ORDER BY run_at, id LIMIT :limit;

-- name: task_claim_pick
-- The oldest ready tasks of a lane.
SELECT rowid, run_at, id, type, queue, payload, payload_ref, attempt + 1, max_attempts, fence + 1, scheduled_for,
  schedule_name, schedule_id, origin, timeout_seconds, traceparent, first_started_at
FROM tasks
WHERE queue = :queue AND tenant_id = :tenant_id AND priority = :priority AND fair_key = :fair_key AND type = :type
  AND state = 'ready'
ORDER BY run_at, id LIMIT :limit;

-- name: task_claim_picks
-- The oldest ready tasks of several lanes, so many of each: one statement, because each costs the thread a turn with Python's lock.
SELECT l.key, t.rowid, t.run_at, t.id, t.type, t.queue, t.payload, t.payload_ref, t.attempt + 1, t.max_attempts, t.fence + 1,
  t.scheduled_for, t.schedule_name, t.schedule_id, t.origin, t.timeout_seconds, t.traceparent, t.first_started_at
FROM json_each(:queue_types) AS l
CROSS JOIN tasks AS t ON t.rowid IN (
  SELECT o.rowid FROM tasks AS o
  WHERE o.queue = l.value ->> 0 AND o.tenant_id = unhex(l.value ->> 1) AND o.priority = l.value ->> 2
    AND o.fair_key = l.value ->> 3 AND o.type = l.value ->> 4 AND o.state = 'ready'
  ORDER BY o.run_at, o.id LIMIT :limit);

-- name: task_claim
-- Take ready tasks under a lease; attempts are counted here, so that a task that kills its worker still dies in the end.
UPDATE tasks SET state = 'running', attempt = attempt + 1, fence = fence + 1, lease_owner = :worker,
  lease_seconds = :lease_seconds, started_at = :now, first_started_at = coalesce(first_started_at, :now),
  deadline_at = min(:now + CAST(timeout_seconds * 1000000 AS INTEGER), coalesce(first_started_at, :now) + :total),
  lease_until = min(:now + :lease, :now + CAST(timeout_seconds * 1000000 AS INTEGER),
    coalesce(first_started_at, :now) + :total),
  progress_fraction = NULL, progress_message = NULL
WHERE rowid IN (SELECT value FROM json_each(:rows)) AND state = 'ready';

-- name: task_heartbeat_find
-- Leases that hold, and until when they are renewed: up to their deadlines, and not if they are to be cancelled.
SELECT t.rowid, t.tenant_id, r.value ->> 0, t.id, t.fence, t.cancel_requested, t.attempt, t.lease_owner, t.log_bytes,
  CASE WHEN t.cancel_requested THEN t.lease_until
    ELSE min(:now + CAST(t.lease_seconds * 1000000 AS INTEGER), coalesce(t.deadline_at, 9223372036854775807)) END
FROM json_each(:leases) AS r
CROSS JOIN tasks AS t ON t.id = unhex(r.value ->> 1) AND t.tenant_id = coalesce(unhex(r.value ->> 0), t.tenant_id) AND t.fence = r.value ->> 2
-- The plus, here and below: statistics taken while nothing ran would have the planner go by the leases, for each one named.
WHERE t.state = 'running' AND +t.lease_until > :now;

-- name: task_heartbeat
-- Renew a lease, with its progress.
UPDATE tasks SET lease_until = ?2, progress_fraction = coalesce(?3, progress_fraction),
  progress_message = coalesce(?4, progress_message), log_bytes = log_bytes + ?5
WHERE rowid = ?1 AND state = 'running';

-- name: task_log_insert
-- A log line of an attempt.
INSERT INTO task_log (task_id, id, tenant_id, at, attempt, worker, text) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: task_complete_insert
-- History rows of running tasks, under their lease.
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, worker, fence, traceparent,
  progress_fraction, progress_message, result, outcome, created_at, started_at, finished_at)
SELECT t.id, t.tenant_id, t.queue, t.type, t.target, t.payload, t.payload_ref, t.origin, t.schedule_id, t.schedule_name,
  t.scheduled_for, t.run_at, t.priority, 'completed', t.attempt, t.max_attempts, t.retry, t.timeout_seconds, t.labels, t.fair_key,
  t.lease_owner, t.fence,
  t.traceparent, t.progress_fraction, t.progress_message, r.value ->> 3, 'completed', t.created_at, t.started_at, :now
FROM json_each(:results) AS r
CROSS JOIN tasks AS t ON t.id = unhex(r.value ->> 1) AND t.tenant_id = coalesce(unhex(r.value ->> 0), t.tenant_id) AND t.fence = r.value ->> 2
WHERE t.state = 'running' AND +t.lease_until > :now
RETURNING id, fence, schedule_id, tenant_id;

-- name: task_complete
-- The live rows go when their history is written.
DELETE FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND state = 'running';

-- name: task_completed
-- Which of these were completed before under the same fence.
SELECT h.id, h.fence FROM json_each(:leases) AS r
CROSS JOIN task_history AS h ON h.id = unhex(r.value ->> 1) AND h.tenant_id = coalesce(unhex(r.value ->> 0), h.tenant_id) AND h.fence = r.value ->> 2
WHERE h.state = 'completed';

-- name: task_queues
-- Which queues tasks are of, live or finished.
SELECT id, queue FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids))
UNION ALL
SELECT id, queue FROM task_history WHERE id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: task_running
-- Leases that hold, with what deciding about them needs.
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  coalesce(t.deadline_at, t.started_at + CAST(t.timeout_seconds * 1000000 AS INTEGER)) AS deadline_at,
  coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM json_each(:leases) AS r
CROSS JOIN tasks AS t ON t.id = unhex(r.value ->> 1) AND t.tenant_id = coalesce(unhex(r.value ->> 0), t.tenant_id) AND t.fence = r.value ->> 2
WHERE t.state = 'running' AND +t.lease_until > :now;

-- name: task_expired
-- Running tasks whose lease has run out.
SELECT id, tenant_id, queue, fence, attempt, max_attempts, retry, cancel_requested,
  coalesce(deadline_at, started_at + CAST(timeout_seconds * 1000000 AS INTEGER)) AS deadline_at,
  coalesce(first_started_at, started_at) AS first_started_at
FROM tasks WHERE state = 'running' AND lease_until <= :now ORDER BY lease_until LIMIT :limit;

-- name: task_end_attempt
-- Keep an attempt that ended without ending its task.
INSERT INTO attempts (task_id, tenant_id, fence, attempt, worker, started_at, ended_at, outcome, error)
SELECT id, tenant_id, fence, attempt, lease_owner, started_at, ?5, ?6, ?9 FROM tasks
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4 AND NOT cancel_requested;

-- name: task_end
-- Put a task back whose attempt ended without ending it. Released work does not count as an attempt.
-- One that was told to stop since it was looked at is not put back: that is to be decided anew.
UPDATE tasks SET state = ?7, run_at = coalesce(?8, run_at), attempt = attempt - iif(?6 = 'released', 1, 0),
  error = coalesce(?9, error), lease_owner = NULL, lease_until = NULL
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4 AND NOT cancel_requested
RETURNING id, fence, NULL;

-- name: task_finish_dead_letter
-- The dead letter of a task whose attempt ended it dead.
INSERT INTO dead_letters (task_id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, priority, max_attempts, retry, timeout_seconds, labels, fair_key, attempt, reason, error, worker, created_at, died_at)
SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, priority,
  max_attempts, retry, timeout_seconds, labels, fair_key, attempt, coalesce(?10, ?6), coalesce(?9, error), lease_owner, created_at, ?5
FROM tasks
WHERE ?7 = 'dead' AND id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4;

-- name: task_finish_insert
-- The history of a task whose attempt ended it without completing.
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, worker, fence, traceparent,
  progress_fraction, progress_message, error, reason, outcome, created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, run_at,
  priority, ?7, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, lease_owner, fence, traceparent, progress_fraction,
  progress_message, coalesce(?9, error), ?10, ?6, created_at, started_at, ?5
FROM tasks
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4;

-- name: task_finish
-- The live row goes when its history is written.
DELETE FROM tasks
WHERE id = ?1 AND tenant_id = ?2 AND fence = ?3 AND state = 'running' AND (lease_until <= ?5) = ?4
RETURNING id, fence, schedule_id;

-- name: task_ended
-- How attempts under these fences were ended before.
SELECT a.task_id AS id, a.fence, a.outcome, NULL AS state FROM json_each(:leases) AS r
CROSS JOIN attempts AS a
  ON a.task_id = unhex(r.value ->> 1) AND a.tenant_id = coalesce(unhex(r.value ->> 0), a.tenant_id) AND a.fence = r.value ->> 2
UNION ALL
SELECT h.id, h.fence, h.outcome, h.state FROM json_each(:leases) AS r
CROSS JOIN task_history AS h ON h.id = unhex(r.value ->> 1) AND h.tenant_id = coalesce(unhex(r.value ->> 0), h.tenant_id) AND h.fence = r.value ->> 2
WHERE h.outcome IS NOT NULL;

-- name: task_promote
-- Make delayed tasks ready whose time has come.
UPDATE tasks SET state = 'ready'
WHERE rowid IN (SELECT rowid FROM tasks WHERE state = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit)
  AND state = 'scheduled'
RETURNING queue;

-- name: task_promote_next
-- When the next delayed task comes due.
SELECT min(run_at) AS next_at FROM tasks WHERE state = 'scheduled' AND run_at > :now;

-- name: task_release_held_schedules
-- Schedules with held tasks. Paused ones keep what they hold.
SELECT id, overlap, concurrency FROM schedules
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND status <> 'paused';

-- name: task_release_held_candidates
-- Which of these schedules hold tasks; those that are gone are told apart.
SELECT unhex(r.value) AS schedule_id, EXISTS (SELECT 1 FROM schedules AS s WHERE s.id = unhex(r.value)) AS is_there
FROM json_each(:ids) AS r
WHERE EXISTS (SELECT 1 FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id = unhex(r.value))
LIMIT :limit;

-- name: task_release_held_any
-- Schedules that hold tasks and have room for one, or something to replace: those that can only wait must not use up the limit.
WITH RECURSIVE held (schedule_id) AS (
  SELECT min(schedule_id) FROM tasks WHERE state = 'held'
  UNION ALL
  SELECT (SELECT min(t.schedule_id) FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id > held.schedule_id)
  FROM held WHERE held.schedule_id IS NOT NULL
)
SELECT held.schedule_id, s.id IS NOT NULL AS is_there
FROM held LEFT JOIN schedules AS s ON s.id = held.schedule_id
WHERE held.schedule_id IS NOT NULL AND s.status IS NOT 'paused' AND (
  -- The usual case apart: what runs is the oldest there is, and found without counting all that waits behind it.
  CASE coalesce(s.concurrency, 1)
    WHEN 1 THEN NOT EXISTS (
      SELECT 1 FROM tasks AS t WHERE t.schedule_id = held.schedule_id AND t.state <> 'held' AND t.origin <> 'backfill')
    ELSE s.concurrency > (
      SELECT count(*) FROM tasks AS t WHERE t.schedule_id = held.schedule_id AND t.state <> 'held' AND t.origin <> 'backfill')
  END OR s.overlap = 'cancel_previous' AND EXISTS (
    SELECT 1 FROM tasks AS t
    WHERE t.schedule_id = held.schedule_id AND t.state <> 'held' AND t.origin = 'tick' AND NOT t.cancel_requested))
LIMIT :limit;

-- name: task_release_held_replaced
-- What a newer held task of the same schedule replaces: gone if it has not started, else asked to stop.
SELECT t.id, t.tenant_id FROM json_each(:ids) AS r CROSS JOIN tasks AS t ON t.schedule_id = unhex(r.value)
WHERE t.origin = 'tick' AND NOT t.cancel_requested AND EXISTS (
  SELECT 1 FROM tasks AS n WHERE n.schedule_id = t.schedule_id AND n.state = 'held' AND n.scheduled_for > t.scheduled_for);

-- name: task_release_held
-- Release held tasks of a schedule in the order of their ticks, as many as it has room for.
UPDATE tasks SET state = iif(run_at > ?3, 'scheduled', 'ready')
WHERE rowid IN (
  SELECT rowid FROM tasks WHERE state = 'held' AND schedule_id = ?1 ORDER BY scheduled_for, id LIMIT max(0, ?2 - (
    SELECT count(*) FROM tasks AS t WHERE t.schedule_id = ?1 AND t.state <> 'held' AND t.origin <> 'backfill'))
) AND state = 'held'
RETURNING queue;

-- name: task_hold
-- Keep what a schedule has fired and nobody has started, while it is paused.
UPDATE tasks SET state = 'held'
WHERE schedule_id IN (SELECT unhex(value) FROM json_each(:ids)) AND +tenant_id = :tenant_id AND origin = 'tick'
  AND state IN ('ready', 'scheduled');

-- name: task_cancel_insert
-- The history of tasks that end before they start.
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, worker, fence, traceparent,
  error, reason,
  created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, run_at,
  priority, 'cancelled', attempt, max_attempts, retry, timeout_seconds, labels, fair_key, lease_owner, fence, traceparent, error, :reason,
  created_at, started_at, :now
FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND state IN ('held', 'scheduled', 'ready');

-- name: task_cancel
-- Tasks that have not started end here.
DELETE FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND state IN ('held', 'scheduled', 'ready')
RETURNING id, schedule_id;

-- name: task_cancel_running
-- Tasks that run are asked to stop.
UPDATE tasks SET cancel_requested = 1
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND state = 'running' RETURNING id;

-- name: task_reschedule
-- Move a task that has not started to another time.
UPDATE tasks SET run_at = :run_at, state = iif(:run_at > :now, 'scheduled', 'ready')
WHERE id = :id AND tenant_id = :tenant_id AND state IN ('scheduled', 'ready');

-- name: task_find
-- Tasks by id, live or finished.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  NULL AS result,
  error, created_at, started_at, NULL AS finished_at, lease_owner AS worker, lease_until, fence, cancel_requested, traceparent,
  NULL AS outcome, NULL AS reason
FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id
UNION ALL
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name, scheduled_for, progress_fraction, progress_message, result, error,
  created_at,
  started_at, finished_at, worker, NULL, fence, 0, traceparent, outcome, reason
FROM task_history WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id;

-- name: task_list
-- Live tasks between two ids, newest first.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  NULL AS result,
  error, created_at, started_at, NULL AS finished_at, lease_owner AS worker, lease_until, fence, cancel_requested, traceparent,
  NULL AS outcome, NULL AS reason
FROM tasks WHERE tenant_id = :tenant_id AND id < :before AND id >= :floor
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_of_schedule
-- Live tasks of a schedule, newest first.
-- The plus: it is the schedule that finds them, not all that its tenant has.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  NULL AS result,
  error, created_at, started_at, NULL AS finished_at, lease_owner AS worker, lease_until, fence, cancel_requested, traceparent,
  NULL AS outcome, NULL AS reason
FROM tasks WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND id < :before
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_floor
-- How far down a list may look before it answers with what it has.
SELECT id FROM tasks WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT 1 OFFSET :scan;

-- name: task_list_past
-- Finished tasks between two ids, newest first.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  result, error,
  created_at, started_at, finished_at, worker, NULL AS lease_until, fence, 0 AS cancel_requested, traceparent,
  outcome, reason
FROM task_history WHERE tenant_id = :tenant_id AND id < :before AND id >= :floor
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_past_of_schedule
-- Finished tasks of a schedule, newest first.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  result, error,
  created_at, started_at, finished_at, worker, NULL AS lease_until, fence, 0 AS cancel_requested, traceparent,
  outcome, reason
FROM task_history WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND id < :before
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_past_floor
-- How far down a list of finished tasks may look before it answers with what it has.
SELECT id FROM task_history WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT 1 OFFSET :scan;

-- name: task_attempts
-- The attempts at a task that did not end it.
SELECT attempt, fence, worker, started_at, ended_at, outcome, error FROM attempts
WHERE task_id = :id AND tenant_id = :tenant_id ORDER BY fence;

-- name: task_log
-- The log lines of a task.
SELECT id, at, attempt, worker, text FROM task_log
WHERE task_id = :id AND tenant_id = :tenant_id AND id > :after ORDER BY id LIMIT :limit;

-- name: task_ticks
-- Ticks that have a backfilled task.
SELECT scheduled_for FROM tasks
WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at
UNION
SELECT scheduled_for FROM task_history
WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at;

-- name: task_ready_count
-- How many tasks of a tenant are ready, found by hopping from queue to queue.
WITH RECURSIVE queues (queue) AS (
  SELECT min(queue) FROM tasks INDEXED BY tasks_ready WHERE state = 'ready' AND queue > ''
  UNION ALL
  SELECT (SELECT min(t.queue) FROM tasks AS t INDEXED BY tasks_ready WHERE t.state = 'ready' AND t.queue > q.queue)
  FROM queues AS q WHERE q.queue IS NOT NULL
)
SELECT count(*) AS count FROM (
  SELECT 1 FROM queues AS q CROSS JOIN tasks AS t INDEXED BY tasks_ready
  WHERE t.state = 'ready' AND t.queue = q.queue AND t.tenant_id = :tenant_id LIMIT :limit
);

-- name: task_depths
-- Live tasks of a tenant, or of all, by queue and state.
SELECT queue, state, count(*) AS count FROM tasks
WHERE :tenant_id IS NULL OR tenant_id = :tenant_id
GROUP BY queue, state ORDER BY queue, state;

-- name: task_key_prune
-- Forget idempotency keys past their time.
DELETE FROM task_keys WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM task_keys WHERE expires_at < :now ORDER BY expires_at LIMIT :limit);
