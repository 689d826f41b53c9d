-- Differs from postgres: a verb is several statements in one immediate transaction, because SQLite has no data-modifying
-- common table expressions. No other writer can interfere. Batches are passed as JSON, with ids in hex.

-- fragment: common_columns
-- The columns of tasks, task_history and dead_letters, except schedule_name. Add new columns of tasks here.
queue, type, target, payload, payload_ref, origin, schedule_id, scheduled_for, priority, max_attempts, retry, timeout_seconds,
labels, fair_key, hooks

-- fragment: copied_columns
-- The columns that are copied from tasks to task_history and dead_letters.
{{common_columns}}, schedule_name

-- fragment: shown_columns
-- The copied columns in queries.
-- returns: schedule_id uuid, scheduled_for time
{{common_columns}}, schedule_name AS schedule

-- fragment: live_task
-- The columns of a live task in queries.
-- returns: id uuid, tenant_id cached_uuid, {{shown_columns}}, run_at time, created_at time, started_at time, finished_at time
-- returns: lease_until time, cancel_requested bool
id, tenant_id, {{shown_columns}}, state, run_at, attempt, progress_fraction, progress_message, NULL AS result, error,
created_at, started_at, NULL AS finished_at, lease_owner AS worker, lease_until, fence, cancel_requested, traceparent,
NULL AS outcome, NULL AS reason, response

-- fragment: finished_task
-- The columns of a finished task in queries.
-- returns: {{live_task}}
id, tenant_id, {{shown_columns}}, state, run_at, attempt, progress_fraction, progress_message, result, error,
created_at, started_at, finished_at, worker, NULL AS lease_until, fence, 0 AS cancel_requested, traceparent,
outcome, reason, response

-- fragment: change_columns
-- The columns that a verb returns of a changed task that is now ready, scheduled or held.
-- returns: id uuid, tenant_id cached_uuid, schedule_id uuid, run_at time
id, tenant_id, queue, type, state, attempt, schedule_id, priority, fair_key, run_at

-- fragment: handoff_deadline
-- The deadline of a task that is inserted as running.
{{attempt_deadline(:started_at, :timeout_seconds, :started_at, :total_seconds)}}

-- name: task_submit
-- Insert a task: running if it has a lease owner, scheduled if its time is in the future, otherwise ready. The values are passed
-- in the order in which their names appear here.
INSERT INTO tasks (id, tenant_id, partition, {{copied_columns}}, run_at, state, traceparent, created_at, lease_owner,
  lease_seconds, attempt, fence, started_at, first_started_at, deadline_at, lease_until)
VALUES (:id, :tenant_id, :partition, {{:copied_columns}}, :run_at, :state, :traceparent, :created_at, :lease_owner,
  :lease_seconds, :started_at IS NOT NULL, :started_at IS NOT NULL, :started_at, :started_at, {{handoff_deadline}},
  {{lease_end(:started_at, :lease_seconds, {{handoff_deadline}})}});

-- name: task_submit_equal
-- Insert waiting tasks that differ only in their id, partition and payload. One statement for many rows: SQLite inserts them
-- without returning to Python, which would have to wait for the event loop before each row.
INSERT INTO tasks (id, tenant_id, partition, {{copied_columns}}, run_at, state, traceparent, created_at)
SELECT unhex(r.value ->> 0), :tenant_id, r.value ->> 1, :queue, :type, :target, r.value ->> 2, r.value ->> 3, :origin,
  :schedule_id, :scheduled_for, :priority, :max_attempts, :retry, :timeout_seconds, :labels, :fair_key, :hooks, :schedule_name,
  :run_at, :state, :traceparent, :created_at
FROM json_each(:rows) AS r;

-- name: task_submit_different
-- Insert waiting tasks that have little in common, as task_submit_equal does.
INSERT INTO tasks (id, tenant_id, partition, {{copied_columns}}, run_at, state, traceparent, created_at)
SELECT unhex(r.value ->> 0), unhex(r.value ->> 1), r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6,
  r.value ->> 7, r.value ->> 8, unhex(r.value ->> 9), r.value ->> 10, r.value ->> 11, r.value ->> 12, r.value ->> 13,
  r.value ->> 14, r.value ->> 15, r.value ->> 16, r.value ->> 17, r.value ->> 18,
  coalesce(r.value ->> 19, :now + r.value ->> 20, :now),
  CASE WHEN coalesce(r.value ->> 19, :now + r.value ->> 20, :now) > :now THEN 'scheduled' ELSE 'ready' END,
  r.value ->> 21, :now
FROM json_each(:rows) AS r;

-- name: task_submit_paused
-- Whether a queue of a tenant is paused.
-- returns: tuples
SELECT {{is_paused(:tenant_id, :queue, :now)}};

-- name: task_key_insert
-- Insert idempotency keys for 24 hours. Expired ones are replaced.
INSERT INTO task_keys (tenant_id, key, task_id, fingerprint, expires_at)
SELECT unhex(n.value ->> 0), n.value ->> 1, unhex(n.value ->> 2), unhex(n.value ->> 3), :now + 86400000000
FROM json_each(:keys) AS n
WHERE true
ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
  expires_at = excluded.expires_at
WHERE task_keys.expires_at <= :now;

-- name: task_key_find
-- The tasks of idempotency keys that have not expired.
-- returns: tenant_id cached_uuid, task_id uuid, fingerprint bytes
SELECT k.tenant_id, k.key, k.task_id, k.fingerprint
FROM json_each(:keys) AS n
CROSS JOIN task_keys AS k ON k.tenant_id = unhex(n.value ->> 0) AND k.key = n.value ->> 1
WHERE k.expires_at > :now;

-- name: task_promote
-- Make delayed tasks ready that are due.
-- returns: {{change_columns}}
UPDATE tasks SET state = 'ready'
WHERE rowid IN (SELECT rowid FROM tasks WHERE state = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit)
  AND state = 'scheduled'
RETURNING {{change_columns}};

-- name: task_promote_next
-- When the next delayed task is due.
-- returns: next_at time
SELECT min(run_at) AS next_at FROM tasks WHERE state = 'scheduled' AND run_at > :now;

-- name: task_release_held_schedules
-- Schedules with held tasks. Held tasks of paused schedules stay held.
-- returns: id uuid
SELECT id, overlap, concurrency FROM schedules
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND status <> 'paused';

-- name: task_release_held_candidates
-- The schedules among these that have held tasks, and whether each of them still exists.
-- returns: schedule_id uuid, is_there bool
SELECT unhex(r.value) AS schedule_id, EXISTS (SELECT 1 FROM schedules AS s WHERE s.id = unhex(r.value)) AS is_there
FROM json_each(:ids) AS r
WHERE EXISTS (SELECT 1 FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id = unhex(r.value))
LIMIT :limit;

-- name: task_release_held_any
-- Schedules whose held tasks can be released, or can replace an unfinished task. Schedules whose held tasks can only wait are
-- excluded, so that they do not use up the limit.
-- returns: schedule_id uuid, is_there bool
WITH RECURSIVE held (schedule_id) AS (
  SELECT min(schedule_id) FROM tasks WHERE state = 'held'
  UNION ALL
  SELECT (SELECT min(t.schedule_id) FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id > held.schedule_id)
  FROM held WHERE held.schedule_id IS NOT NULL
)
SELECT held.schedule_id, s.id IS NOT NULL AS is_there
FROM held LEFT JOIN schedules AS s ON s.id = held.schedule_id
WHERE held.schedule_id IS NOT NULL AND s.status IS NOT 'paused' AND (
  -- The usual case is separate: the unfinished task is the oldest one, so NOT EXISTS finds it without reading the held tasks.
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
-- Tasks that a newer held task of the same schedule replaces. They are cancelled, or get a cancel request if they are running.
-- returns: id uuid, tenant_id cached_uuid
SELECT t.id, t.tenant_id FROM json_each(:ids) AS r CROSS JOIN tasks AS t ON t.schedule_id = unhex(r.value)
WHERE t.origin = 'tick' AND NOT t.cancel_requested AND EXISTS (
  SELECT 1 FROM tasks AS n WHERE n.schedule_id = t.schedule_id AND n.state = 'held' AND n.scheduled_for > t.scheduled_for);

-- name: task_release_held
-- Release held tasks of a schedule in the order of their ticks, up to its concurrency limit.
-- returns: {{change_columns}}
UPDATE tasks SET state = iif(run_at > ?3, 'scheduled', 'ready'), ready_at = ?3
WHERE rowid IN (
  SELECT rowid FROM tasks WHERE state = 'held' AND schedule_id = ?1 ORDER BY scheduled_for, id LIMIT max(0, ?2 - (
    SELECT count(*) FROM tasks AS t WHERE t.schedule_id = ?1 AND t.state <> 'held' AND t.origin <> 'backfill'))
) AND state = 'held'
RETURNING {{change_columns}};

-- name: task_hold
-- Hold tasks of a paused schedule that it has fired and that have not started.
-- returns: {{change_columns}}
UPDATE tasks SET state = 'held'
WHERE schedule_id IN (SELECT unhex(value) FROM json_each(:ids)) AND +tenant_id = :tenant_id AND origin = 'tick'
  AND state IN ('ready', 'scheduled')
RETURNING {{change_columns}};

-- name: task_cancel_lock
-- The tasks to cancel, before the change.
-- Differs from postgres: no row locks, because there is only one writing transaction at a time.
-- returns: id uuid, cancel_requested bool
SELECT id, cancel_requested FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id;

-- name: task_cancel_insert
-- Insert the history rows of tasks that are cancelled before they start.
INSERT INTO task_history (id, tenant_id, {{copied_columns}}, run_at, state, attempt, worker, fence, traceparent,
  error, reason,
  created_at, started_at, finished_at)
SELECT id, tenant_id, {{copied_columns}}, run_at, 'cancelled', attempt, lease_owner, fence, traceparent, error, :reason,
  created_at, started_at, :now
FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND state IN ('held', 'scheduled', 'ready');

-- name: task_cancel
-- Delete the live rows of tasks that are cancelled before they start.
-- returns: id uuid, tenant_id cached_uuid, schedule_id uuid
DELETE FROM tasks
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND state IN ('held', 'scheduled', 'ready')
RETURNING id, tenant_id, queue, type, attempt, schedule_id;

-- name: task_cancel_running
-- Set a cancel request on running tasks.
-- returns: id uuid, tenant_id cached_uuid, schedule_id uuid
UPDATE tasks SET cancel_requested = 1
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND state = 'running'
RETURNING id, tenant_id, queue, type, attempt, schedule_id, lease_owner AS worker;

-- name: task_reschedule
-- Change the time of a task that has not started.
-- returns: {{change_columns}}
UPDATE tasks SET run_at = :run_at, state = iif(:run_at > :now, 'scheduled', 'ready')
WHERE id = :id AND tenant_id = :tenant_id AND state IN ('scheduled', 'ready')
RETURNING {{change_columns}};

-- name: task_find
-- Tasks by id, live or finished.
-- returns: {{live_task}}
SELECT {{live_task}}
FROM tasks WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id
UNION ALL
SELECT {{finished_task}}
FROM task_history WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id;

-- name: task_list
-- Live tasks between two ids, newest first.
-- returns: {{live_task}}
SELECT {{live_task}}
FROM tasks WHERE tenant_id = :tenant_id AND id < :before AND id >= :floor
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_of_schedule
-- Live tasks of a schedule, newest first.
-- The plus prevents the use of the tenant's index, so that the rows are found by the schedule.
-- returns: {{live_task}}
SELECT {{live_task}}
FROM tasks WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND id < :before
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_floor
-- The lowest id that a scan of live tasks may reach. It bounds a scan with a selective filter.
-- returns: id uuid
SELECT id FROM tasks WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT 1 OFFSET :scan;

-- name: task_list_past
-- Finished tasks between two ids, newest first.
-- returns: {{finished_task}}
SELECT {{finished_task}}
FROM task_history WHERE tenant_id = :tenant_id AND id < :before AND id >= :floor
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_past_of_schedule
-- Finished tasks of a schedule, newest first.
-- returns: {{finished_task}}
SELECT {{finished_task}}
FROM task_history WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND id < :before
  AND (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
ORDER BY id DESC LIMIT :limit;

-- name: task_list_past_floor
-- The lowest id that a scan of finished tasks may reach. It bounds a scan with a selective filter.
-- returns: id uuid
SELECT id FROM task_history WHERE tenant_id = :tenant_id AND id < :before ORDER BY id DESC LIMIT 1 OFFSET :scan;

-- fragment: task_matches
-- The conditions of the filter of a bulk operation.
(:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) AND (:type IS NULL OR type = :type)
  AND (:schedule_id IS NULL OR schedule_id = :schedule_id)
  AND (:label_key IS NULL OR EXISTS (SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key
    AND (:label_value IS NULL OR l.value = :label_value)))
  AND (:error_kind IS NULL OR error ->> 'kind' = :error_kind)
  AND created_at >= :from_at AND created_at < :to_at

-- name: task_match
-- The ids of live tasks between two ids that match the filter of a bulk operation, newest first.
-- returns: id uuid
SELECT id FROM tasks WHERE tenant_id = :tenant_id AND id < :before AND id >= :floor AND {{task_matches}}
ORDER BY id DESC LIMIT :limit;

-- name: task_match_past
-- The ids of finished tasks between two ids that match the filter of a bulk operation, newest first.
-- returns: id uuid
SELECT id FROM task_history WHERE tenant_id = :tenant_id AND id < :before AND id >= :floor AND {{task_matches}}
ORDER BY id DESC LIMIT :limit;

-- name: task_attempts
-- The attempts of a task that did not end it.
-- returns: started_at time, ended_at time
SELECT attempt, fence, worker, started_at, ended_at, outcome, error, response FROM attempts
WHERE task_id = :id AND tenant_id = :tenant_id ORDER BY fence;

-- name: task_log
-- The log lines of a task.
-- returns: id uuid, at time
SELECT id, at, attempt, worker, text FROM task_log
WHERE task_id = :id AND tenant_id = :tenant_id AND id > :after ORDER BY id LIMIT :limit;

-- name: task_ticks
-- Ticks that have a backfill task.
-- returns: scheduled_for time
SELECT scheduled_for FROM tasks
WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at
UNION
SELECT scheduled_for FROM task_history
WHERE schedule_id = :schedule_id AND +tenant_id = :tenant_id AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at;

-- name: task_runs
-- How long finished tasks took and how they ended, without their payloads, oldest first.
-- returns: schedule_id uuid, started_at time, finished_at time
SELECT schedule_id, state, started_at, finished_at FROM task_history
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id AND schedule_id IS NOT NULL ORDER BY id;

-- name: task_position
-- How many ready tasks of the tenant are before one in its queue. Reads at most `limit` of them, in the order of the index.
SELECT count(CASE WHEN (priority, run_at, id) < (:priority, :run_at, :id) THEN 1 END) AS ahead, count(*) AS examined
FROM (
  SELECT priority, run_at, id FROM tasks
  WHERE queue = :queue AND tenant_id = :tenant_id AND state = 'ready' AND priority <= :priority
  ORDER BY priority LIMIT :limit
) AS candidates;

-- name: task_ready_count
-- The number of a tenant's tasks that are ready or due soon, up to a limit. A loose index scan finds the queues, one index seek
-- for each.
WITH RECURSIVE queues (queue) AS (
  SELECT min(queue) FROM tasks INDEXED BY tasks_ready WHERE state = 'ready' AND queue > ''
  UNION ALL
  SELECT (SELECT min(t.queue) FROM tasks AS t INDEXED BY tasks_ready WHERE t.state = 'ready' AND t.queue > q.queue)
  FROM queues AS q WHERE q.queue IS NOT NULL
)
SELECT count(*) AS count FROM (
  SELECT 1 FROM queues AS q CROSS JOIN tasks AS t INDEXED BY tasks_ready
  WHERE t.state = 'ready' AND t.queue = q.queue AND t.tenant_id = :tenant_id
  UNION ALL
  SELECT 1 FROM tasks INDEXED BY tasks_scheduled_of_tenant
  WHERE state = 'scheduled' AND tenant_id = :tenant_id AND run_at <= :now + CAST(:soon_seconds * 1000000 AS INTEGER)
  LIMIT :limit
);

-- name: task_depths
-- The number of live tasks of a tenant, or of all, by queue and state.
SELECT queue, state, count(*) AS count FROM tasks
WHERE :tenant_id IS NULL OR tenant_id = :tenant_id
GROUP BY queue, state ORDER BY queue, state;

-- name: task_queue_list
-- The numbers of a tenant's live tasks by queue.
-- returns: oldest_ready_at time
SELECT queue, count(*) FILTER (WHERE state = 'ready') AS ready, count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
  count(*) FILTER (WHERE state = 'held') AS held, count(*) FILTER (WHERE state = 'running') AS running,
  min(run_at) FILTER (WHERE state = 'ready') AS oldest_ready_at
FROM tasks WHERE tenant_id = :tenant_id GROUP BY queue ORDER BY queue;

-- name: task_key_prune
-- Delete expired idempotency keys.
DELETE FROM task_keys WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM task_keys WHERE expires_at < :now ORDER BY expires_at LIMIT :limit);
