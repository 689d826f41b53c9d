-- fragment: common_columns
-- The columns of tasks, task_history and dead_letters, except schedule_name. Add new columns of tasks here.
queue, type, target, payload, payload_ref, origin, schedule_id, scheduled_for, priority, max_attempts, retry, timeout_seconds,
labels, fair_key, hooks

-- fragment: copied_columns
-- The columns that are copied from tasks to task_history and dead_letters.
{{common_columns}}, schedule_name

-- fragment: shown_columns
-- The copied columns in queries.
{{common_columns}}, schedule_name AS schedule

-- fragment: live_task
-- The columns of a live task in queries.
id, tenant_id, {{shown_columns}}, state, run_at, attempt, progress_fraction, progress_message, NULL::text AS result, error,
created_at, started_at, NULL::timestamptz AS finished_at, lease_owner AS worker, lease_until, fence, cancel_requested, traceparent,
NULL::text AS outcome, NULL::text AS reason, response

-- fragment: finished_task
-- The columns of a finished task in queries.
id, tenant_id, {{shown_columns}}, state, run_at, attempt, progress_fraction, progress_message, result, error,
created_at, started_at, finished_at, worker, NULL::timestamptz AS lease_until, fence, false AS cancel_requested, traceparent,
outcome, reason, response

-- fragment: change_columns
-- The columns that a verb returns of a changed task that is now ready, scheduled or held.
id, tenant_id, queue, type, state, attempt, schedule_id, priority, fair_key, run_at

-- name: task_submit
-- Insert tasks: running if they have a lease owner, scheduled if their time is in the future, otherwise ready. Fields that are
-- equal for many tasks, their shape, are sent once. The statement fails and is rolled back, with an SQLSTATE of its own, if an
-- idempotency key is taken, or if the queue of a task with a lease owner is paused.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
inserted_keys AS (
  INSERT INTO task_keys AS k (tenant_id, key, task_id, fingerprint, expires_at)
  SELECT n.tenant_id, n.key, n.task_id, n.fingerprint, coalesce(:now::timestamptz, now()) + interval '24 hours'
  FROM unnest(:key_tenant_ids::uuid[], :keys::text[], :key_task_ids::uuid[], :fingerprints::bytea[])
    AS n(tenant_id, key, task_id, fingerprint)
  -- Sorted, so that two batches with the same keys insert them in the same order and cannot deadlock.
  ORDER BY n.tenant_id, n.key
  ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
    expires_at = excluded.expires_at
  WHERE k.expires_at <= coalesce(:now::timestamptz, now())
  RETURNING k.task_id
),
inserted AS (
  INSERT INTO tasks (id, tenant_id, partition, {{copied_columns}}, run_at, state, traceparent, created_at, lease_owner,
    lease_seconds, attempt, fence, started_at, first_started_at, deadline_at, lease_until)
  SELECT t.id, (:tenant_ids::uuid[])[t.shape], t.partition, (:queues::text[])[t.shape], (:types::text[])[t.shape],
    (:targets::text[])[t.shape], t.payload, t.payload_ref, (:origins::text[])[t.shape], (:schedule_ids::uuid[])[t.shape],
    (:scheduled_fors::timestamptz[])[t.shape], (:priorities::integer[])[t.shape], (:max_attempts::integer[])[t.shape],
    (:retries::text[])[t.shape], (:timeouts::double precision[])[t.shape], (:labels::text[])[t.shape],
    (:fair_keys::text[])[t.shape], (:hooks::text[])[t.shape], (:schedule_names::text[])[t.shape], r.run_at,
    CASE WHEN l.owner IS NOT NULL THEN 'running' WHEN r.run_at > m.at THEN 'scheduled' ELSE 'ready' END,
    (:traceparents::text[])[t.shape], m.at, l.owner, l.seconds, l.count, l.count, l.at, l.at, d.deadline_at,
    {{lease_end(l.at, l.seconds, d.deadline_at)}}
  FROM moment AS m, unnest(:ids::uuid[], :partitions::smallint[], :payloads::text[], :payload_refs::text[],
    :shapes::integer[]) AS t(id, partition, payload, payload_ref, shape)
  CROSS JOIN LATERAL (
    SELECT coalesce((:run_ats::timestamptz[])[t.shape],
      m.at + make_interval(secs => (:delays::double precision[])[t.shape]), m.at)
  ) AS r(run_at)
  CROSS JOIN LATERAL (
    SELECT (:lease_owners::text[])[t.shape], (:lease_seconds::double precision[])[t.shape],
      CASE WHEN (:lease_owners::text[])[t.shape] IS NULL THEN 0 ELSE 1 END,
      CASE WHEN (:lease_owners::text[])[t.shape] IS NULL THEN NULL ELSE m.at END
  ) AS l(owner, seconds, count, at)
  CROSS JOIN LATERAL (
    SELECT {{attempt_deadline(l.at, (:timeouts::double precision[])[t.shape],
      l.at, (:total_seconds::double precision[])[t.shape])}}
  ) AS d(deadline_at)
)
SELECT at AS moment,
  CASE WHEN (SELECT count(*) FROM inserted_keys) < cardinality(:keys::text[]) THEN everbeat_raise_key_taken() END AS is_taken,
  CASE WHEN EXISTS (
    SELECT 1 FROM unnest(:lease_owners::text[], :tenant_ids::uuid[], :queues::text[]) AS h(owner, tenant_id, queue)
    WHERE h.owner IS NOT NULL AND {{is_paused(h.tenant_id, h.queue, at)}}
  ) THEN everbeat_raise_paused() END AS is_paused
FROM moment;

-- name: task_key_insert
-- Insert idempotency keys for 24 hours. Expired ones are replaced. Returns only the keys that were inserted.
INSERT INTO task_keys AS k (tenant_id, key, task_id, fingerprint, expires_at)
SELECT n.tenant_id, n.key, n.task_id, n.fingerprint, coalesce(:now::timestamptz, now()) + interval '24 hours'
FROM unnest(:key_tenant_ids::uuid[], :keys::text[], :key_task_ids::uuid[], :fingerprints::bytea[])
  AS n(tenant_id, key, task_id, fingerprint)
-- Sorted, so that two batches with the same keys insert them in the same order and cannot deadlock.
ORDER BY n.tenant_id, n.key
ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
  expires_at = excluded.expires_at
WHERE k.expires_at <= coalesce(:now::timestamptz, now())
RETURNING task_id;

-- name: task_key_find
-- The tasks of idempotency keys.
SELECT k.tenant_id, k.key, k.task_id, k.fingerprint
FROM unnest(:tenant_ids::uuid[], :keys::text[]) AS n(tenant_id, key)
JOIN task_keys AS k ON k.tenant_id = n.tenant_id AND k.key = n.key;

-- name: task_promote
-- Make delayed tasks ready that are due. Several nodes may do this at the same time; rows locked by another one are skipped.
-- There is a row without a task if none is due.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
due AS MATERIALIZED (
  SELECT id FROM tasks WHERE state = 'scheduled' AND run_at <= (SELECT at FROM moment)
  ORDER BY run_at LIMIT :limit FOR UPDATE SKIP LOCKED
),
promoted AS (
  UPDATE tasks AS t SET state = 'ready' FROM due AS d WHERE t.id = d.id AND (t.state = 'scheduled') IS TRUE
  RETURNING {{t.change_columns}}
),
next_due AS MATERIALIZED (
  SELECT m.at AS moment, (SELECT min(run_at) FROM tasks WHERE state = 'scheduled' AND run_at > m.at) AS next_at,
    -- Counted up to one more than the promoted ones: a task that is due and was not promoted is locked.
    (SELECT count(*) FROM (
      SELECT 1 FROM tasks WHERE state = 'scheduled' AND run_at <= m.at ORDER BY run_at LIMIT (SELECT count(*) + 1 FROM due)
    ) AS counted) > (SELECT count(*) FROM due) AS has_more
  FROM moment AS m
)
SELECT n.moment, n.next_at, n.has_more, {{p.change_columns}} FROM next_due AS n LEFT JOIN promoted AS p ON true;

-- name: task_release_held_schedules
-- Lock schedules with held tasks, so that concurrent firings and releases wait. Held tasks of paused schedules stay held.
-- Schedules that another transaction has locked are skipped: this loop must not hold the locks of the others meanwhile.
SELECT s.id, s.overlap, s.concurrency FROM schedules AS s
WHERE s.id = ANY(:ids::uuid[]) AND s.status <> 'paused' ORDER BY s.id FOR UPDATE SKIP LOCKED;

-- name: task_release_held_locked
-- The schedules among these that can have held tasks released.
SELECT s.id FROM schedules AS s WHERE s.id = ANY(:ids::uuid[]) AND s.status <> 'paused';

-- name: task_release_held_candidates
-- The schedules among these that have held tasks, and whether each of them still exists.
-- LIMIT 1 forces an index lookup for each schedule. The planner may execute EXISTS by hashing the whole table.
SELECT r.id AS schedule_id, (SELECT true FROM schedules AS s WHERE s.id = r.id LIMIT 1) IS TRUE AS is_there
FROM unnest(:ids::uuid[]) AS r(id)
CROSS JOIN LATERAL (SELECT 1 FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id = r.id LIMIT 1) AS held
LIMIT :limit;

-- name: task_release_held_any
-- Schedules whose held tasks can be released, or can replace an unfinished task. Schedules whose held tasks can only wait are
-- excluded, so that they do not use up the limit.
WITH RECURSIVE held(schedule_id) AS (
  (SELECT schedule_id FROM tasks WHERE state = 'held' ORDER BY schedule_id LIMIT 1)
  UNION ALL
  SELECT (
    SELECT t.schedule_id FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id > held.schedule_id
    ORDER BY t.schedule_id LIMIT 1
  ) FROM held WHERE held.schedule_id IS NOT NULL
)
SELECT held.schedule_id, s.id IS NOT NULL AS is_there
FROM held LEFT JOIN schedules AS s ON s.id = held.schedule_id
WHERE held.schedule_id IS NOT NULL AND s.status IS DISTINCT FROM 'paused' AND (
  (SELECT count(*) FROM (
    SELECT 1 FROM tasks AS t WHERE t.schedule_id = held.schedule_id AND t.state <> 'held' AND t.origin <> 'backfill'
    LIMIT coalesce(s.concurrency, 1)
  ) AS unfinished) < coalesce(s.concurrency, 1)
  OR s.overlap = 'cancel_previous' AND (
    SELECT true FROM tasks AS t
    WHERE t.schedule_id = held.schedule_id AND t.state <> 'held' AND t.origin = 'tick' AND NOT t.cancel_requested LIMIT 1))
LIMIT :limit;

-- name: task_release_held_replaced
-- Tasks that a newer held task of the same schedule replaces. They are cancelled, or get a cancel request if they are running.
WITH replaced AS MATERIALIZED (
  SELECT t.id FROM tasks AS t
  WHERE t.schedule_id = ANY(:ids::uuid[]) AND t.origin = 'tick' AND NOT t.cancel_requested AND EXISTS (
    SELECT 1 FROM tasks AS n WHERE n.schedule_id = t.schedule_id AND n.state = 'held' AND n.scheduled_for > t.scheduled_for)
)
SELECT t.id, t.tenant_id FROM replaced AS r JOIN tasks AS t ON t.id = r.id FOR UPDATE OF t SKIP LOCKED;

-- name: task_release_held
-- Release held tasks in the order of their ticks, up to the concurrency limits of their schedules.
WITH capacity AS (
  SELECT s.id, s.concurrency - (
    SELECT count(*) FROM tasks AS t WHERE t.schedule_id = s.id AND t.state <> 'held' AND t.origin <> 'backfill'
  ) AS free
  FROM unnest(:ids::uuid[], :concurrencies::bigint[]) AS s(id, concurrency)
),
next_held AS MATERIALIZED (
  SELECT h.id FROM capacity AS r CROSS JOIN LATERAL (
    SELECT id FROM tasks WHERE state = 'held' AND schedule_id = r.id ORDER BY scheduled_for, id LIMIT greatest(r.free, 0)
  ) AS h
),
locked AS MATERIALIZED (
  -- After the choice: a locked task keeps its place, so that no later tick of its schedule overtakes it.
  SELECT t.id FROM next_held AS h JOIN tasks AS t ON t.id = h.id WHERE (t.state = 'held') IS TRUE FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE tasks AS t SET ready_at = coalesce(:now::timestamptz, now()),
  state = CASE WHEN t.run_at > coalesce(:now::timestamptz, now()) THEN 'scheduled' ELSE 'ready' END
FROM locked AS h WHERE t.id = h.id AND (t.state = 'held') IS TRUE
RETURNING {{t.change_columns}};

-- name: task_hold
-- Hold tasks of a paused schedule that it has fired and that have not started.
UPDATE tasks SET state = 'held'
WHERE schedule_id = ANY(:ids::uuid[]) AND (tenant_id = :tenant_id) IS TRUE AND origin = 'tick'
  AND state IN ('ready', 'scheduled')
RETURNING {{change_columns}};

-- name: task_cancel_lock
-- Lock tasks before they are cancelled. They are locked in order of id, so that concurrent cancels cannot deadlock.
SELECT id, cancel_requested FROM tasks WHERE id = ANY(:ids::uuid[]) AND tenant_id = :tenant_id ORDER BY id FOR UPDATE;

-- name: task_cancel
-- Move tasks that have not started to history as cancelled.
WITH cancelled AS (
  DELETE FROM tasks AS t
  WHERE t.id = ANY(:ids::uuid[]) AND t.tenant_id = :tenant_id AND t.state IN ('held', 'scheduled', 'ready')
  RETURNING t.*
)
INSERT INTO task_history (id, tenant_id, {{copied_columns}}, run_at, state, attempt, worker, fence, traceparent,
  error, reason,
  created_at, started_at, finished_at)
SELECT id, tenant_id, {{copied_columns}}, run_at, 'cancelled', attempt, lease_owner, fence, traceparent, error, :reason,
  created_at, started_at, coalesce(:now::timestamptz, now())
FROM cancelled
RETURNING id, tenant_id, queue, type, attempt, schedule_id;

-- name: task_cancel_running
-- Set a cancel request on running tasks.
UPDATE tasks SET cancel_requested = true
WHERE id = ANY(:ids::uuid[]) AND tenant_id = :tenant_id AND state = 'running'
RETURNING id, tenant_id, queue, type, attempt, schedule_id, lease_owner AS worker;

-- name: task_reschedule
-- Change the time of a task that has not started.
UPDATE tasks SET run_at = :run_at,
  state = CASE WHEN :run_at::timestamptz > coalesce(:now::timestamptz, now()) THEN 'scheduled' ELSE 'ready' END
WHERE id = :id AND tenant_id = :tenant_id AND state IN ('scheduled', 'ready')
RETURNING {{change_columns}};

-- name: task_find
-- Tasks by id, live or finished.
SELECT {{live_task}}
FROM tasks WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[])
UNION ALL
SELECT {{finished_task}}
FROM task_history WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- name: task_list
-- Live tasks of a tenant between two ids, newest first. Row comparisons and the order by both columns leave the planner only
-- the index on (tenant_id, id). With the primary key it would read the tasks of all other tenants. The planner estimates a row
-- comparison by its first column: with < instead of <= it would expect no row of a tenant that has the lowest id, such as the
-- default tenant, and sort all of its tasks. The conditions on id alone tell it how many rows are between the two ids.
SELECT {{live_task}}
FROM tasks WHERE (tenant_id, id) <= (:tenant_id, :before) AND (id < :before) IS TRUE
  AND (tenant_id, id) >= (:tenant_id, :floor) AND (id >= :floor) IS TRUE
  AND (:state::text IS NULL OR (state = :state) IS TRUE) AND (:queue::text IS NULL OR (queue = :queue) IS TRUE)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY tenant_id DESC, id DESC LIMIT :limit;

-- name: task_list_of_schedule
-- Live tasks of a schedule, newest first.
SELECT {{live_task}}
FROM tasks WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND id < :before
  AND (:state::text IS NULL OR state = :state) AND (:queue::text IS NULL OR queue = :queue)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY id DESC LIMIT :limit;

-- name: task_list_floor
-- The lowest id that a scan of live tasks may reach. It bounds a scan with a selective filter.
SELECT id FROM tasks WHERE (tenant_id, id) <= (:tenant_id, :before) AND (id < :before) IS TRUE AND tenant_id >= :tenant_id
ORDER BY tenant_id DESC, id DESC OFFSET :scan LIMIT 1;

-- name: task_list_past
-- Finished tasks between two ids, newest first.
SELECT {{finished_task}}
FROM task_history WHERE (tenant_id, id) <= (:tenant_id, :before) AND (id < :before) IS TRUE
  AND (tenant_id, id) >= (:tenant_id, :floor) AND (id >= :floor) IS TRUE
  AND (:state::text IS NULL OR (state = :state) IS TRUE) AND (:queue::text IS NULL OR (queue = :queue) IS TRUE)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY tenant_id DESC, id DESC LIMIT :limit;

-- name: task_list_past_of_schedule
-- Finished tasks of a schedule, newest first.
SELECT {{finished_task}}
FROM task_history WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND id < :before
  AND (:state::text IS NULL OR state = :state) AND (:queue::text IS NULL OR queue = :queue)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY id DESC LIMIT :limit;

-- name: task_list_past_floor
-- The lowest id that a scan of finished tasks may reach. It bounds a scan with a selective filter.
SELECT id FROM task_history WHERE (tenant_id, id) <= (:tenant_id, :before) AND (id < :before) IS TRUE AND tenant_id >= :tenant_id
ORDER BY tenant_id DESC, id DESC OFFSET :scan LIMIT 1;

-- fragment: task_matches
-- The conditions of the filter of a bulk operation. IS TRUE leaves the planner only the index on (tenant_id, id).
(:state::text IS NULL OR (state = :state) IS TRUE) AND (:queue::text IS NULL OR (queue = :queue) IS TRUE)
  AND (:type::text IS NULL OR type = :type) AND (:schedule_id::uuid IS NULL OR (schedule_id = :schedule_id) IS TRUE)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
  AND (:error_kind::text IS NULL OR error::jsonb ->> 'kind' = :error_kind)
  AND created_at >= :from_at AND created_at < :to_at

-- name: task_match
-- The ids of live tasks between two ids that match the filter of a bulk operation, newest first.
SELECT id FROM tasks WHERE (tenant_id, id) <= (:tenant_id, :before) AND (id < :before) IS TRUE
  AND (tenant_id, id) >= (:tenant_id, :floor) AND (id >= :floor) IS TRUE
  AND {{task_matches}}
ORDER BY tenant_id DESC, id DESC LIMIT :limit;

-- name: task_match_past
-- The ids of finished tasks between two ids that match the filter of a bulk operation, newest first.
SELECT id FROM task_history WHERE (tenant_id, id) <= (:tenant_id, :before) AND (id < :before) IS TRUE
  AND (tenant_id, id) >= (:tenant_id, :floor) AND (id >= :floor) IS TRUE
  AND {{task_matches}}
ORDER BY tenant_id DESC, id DESC LIMIT :limit;

-- name: task_attempts
-- The attempts of a task that did not end it.
SELECT attempt, fence, worker, started_at, ended_at, outcome, error, response FROM attempts
WHERE task_id = :id AND tenant_id = :tenant_id ORDER BY fence;

-- name: task_log
-- The log lines of a task.
SELECT id, at, attempt, worker, text FROM task_log
WHERE task_id = :id AND tenant_id = :tenant_id AND id > :after ORDER BY id LIMIT :limit;

-- name: task_ticks
-- Ticks that have a backfill task.
SELECT scheduled_for FROM tasks
WHERE schedule_id = :schedule_id AND (tenant_id = :tenant_id) IS TRUE AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at
UNION
SELECT scheduled_for FROM task_history
WHERE schedule_id = :schedule_id AND (tenant_id = :tenant_id) IS TRUE AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at;

-- name: task_runs
-- How long finished tasks took and how they ended, without their payloads, oldest first.
SELECT schedule_id, state, started_at, finished_at FROM task_history
WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]) AND schedule_id IS NOT NULL ORDER BY id;

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
WITH RECURSIVE queues AS (
  (SELECT queue FROM tasks WHERE state = 'ready' AND queue > '' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT t.queue FROM tasks AS t WHERE t.state = 'ready' AND t.queue > q.queue ORDER BY t.queue LIMIT 1)
  FROM queues AS q WHERE q.queue IS NOT NULL
)
SELECT count(*) AS count FROM (
  SELECT 1 FROM queues AS q CROSS JOIN LATERAL (
    SELECT 1 FROM tasks AS t WHERE t.state = 'ready' AND t.queue = q.queue AND t.tenant_id = :tenant_id LIMIT :limit
  ) AS ready
  WHERE q.queue IS NOT NULL
  UNION ALL
  -- The function hides the tenant from the planner, which might otherwise scan the tasks of all tenants for one with many.
  SELECT 1 FROM unnest(ARRAY[:tenant_id::uuid]) AS q(tenant_id) CROSS JOIN LATERAL (
    SELECT 1 FROM tasks AS t WHERE t.state = 'scheduled' AND t.tenant_id = q.tenant_id
      AND t.run_at <= coalesce(:now::timestamptz, now()) + make_interval(secs => :soon_seconds::double precision)
    ORDER BY t.tenant_id, t.run_at LIMIT :limit
  ) AS due
  LIMIT :limit
) AS counted;

-- name: task_depths
-- The number of live tasks of a tenant, or of all, by queue and state.
SELECT queue, state, count(*) AS count FROM tasks
WHERE :tenant_id::uuid IS NULL OR tenant_id = :tenant_id
GROUP BY queue, state ORDER BY queue, state;

-- name: task_queue_list
-- The numbers of a tenant's live tasks by queue.
SELECT queue, count(*) FILTER (WHERE state = 'ready') AS ready, count(*) FILTER (WHERE state = 'scheduled') AS scheduled,
  count(*) FILTER (WHERE state = 'held') AS held, count(*) FILTER (WHERE state = 'running') AS running,
  min(run_at) FILTER (WHERE state = 'ready') AS oldest_ready_at
FROM tasks WHERE tenant_id = :tenant_id GROUP BY queue ORDER BY queue;

-- name: task_key_prune
-- Delete expired idempotency keys.
DELETE FROM task_keys WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM task_keys WHERE expires_at < coalesce(:now::timestamptz, now())
  ORDER BY expires_at LIMIT :limit FOR UPDATE SKIP LOCKED);
