-- fragment: flow_columns
-- The columns that identify a flow of a queue.
tenant_id, priority, fair_key, type

-- fragment: attempt_deadline(started_at, timeout_seconds, first_started_at, total_seconds)
-- When an attempt must have ended: after its timeout, and before the time limit of all attempts of the task.
least(started_at + make_interval(secs => timeout_seconds), first_started_at + make_interval(secs => total_seconds))

-- fragment: lease_end(at, seconds, deadline)
-- The end of a lease that is granted or renewed: at most the deadline of the attempt.
least(at + make_interval(secs => seconds), deadline)

-- fragment: seconds_between(since, until)
-- The seconds from one time to a later one.
extract(epoch FROM until - since)::double precision

-- fragment: deadline_of_task
-- The deadline of a running task. Tasks that nodes of the first version have claimed have no deadline_at.
coalesce(t.deadline_at, t.started_at + make_interval(secs => t.timeout_seconds))

-- name: task_flows
-- Flows with ready tasks, after the given flow of each queue, of tenants up to last_tenant_id. A loose index scan: one index
-- seek for each flow, however many tasks it has.
SELECT f.queue, {{f.flow_columns}}
FROM unnest(:queues::text[], :tenant_ids::uuid[], :priorities::integer[], :fair_keys::text[], :types::text[])
  AS q(queue, {{flow_columns}})
CROSS JOIN LATERAL (
  WITH RECURSIVE flow(queue, {{flow_columns}}) AS (
    SELECT q.queue, {{q.flow_columns}}
    UNION ALL
    SELECT n.queue, {{n.flow_columns}} FROM flow CROSS JOIN LATERAL (
      -- Ordered by all leading columns of the index, so that the planner uses no other one. The scan ends at the end of the
      -- queue, or after the last tenant.
      SELECT t.queue, {{t.flow_columns}} FROM tasks AS t
      WHERE t.state = 'ready' AND (t.queue, {{t.flow_columns}}) > (flow.queue, {{flow.flow_columns}})
      ORDER BY t.queue, {{t.flow_columns}} LIMIT 1
    ) AS n
    WHERE n.queue = flow.queue AND n.tenant_id <= :last_tenant_id
  )
  SELECT * FROM flow OFFSET 1 LIMIT :limit
) AS f;

-- name: task_ready_queues
-- The queues with ready tasks, and the tenants of these tasks, after the given queue and tenant. A loose index scan: one index
-- seek for each pair, however many tasks it has.
WITH RECURSIVE ready(queue, tenant_id) AS (
  SELECT :queue::text, :tenant_id::uuid
  UNION ALL
  SELECT n.queue, n.tenant_id FROM ready CROSS JOIN LATERAL (
    SELECT t.queue, t.tenant_id FROM tasks AS t
    WHERE t.state = 'ready' AND (t.queue, t.tenant_id) > (ready.queue, ready.tenant_id)
    ORDER BY t.queue, {{t.flow_columns}} LIMIT 1
  ) AS n
)
SELECT queue, tenant_id FROM ready OFFSET 1 LIMIT :limit;

-- name: task_claim_tenants
-- Lock tenants that have a limit of running tasks. Concurrent claims for them wait, so that each claim counts the tasks of the
-- previous one.
SELECT id, max_running FROM tenants WHERE id = ANY(:tenant_ids::uuid[]) ORDER BY id FOR UPDATE;

-- name: task_claim_unlocked_tenants
-- As task_claim_tenants, without the tenants that another transaction has locked for some time.
SELECT id, max_running FROM tenants WHERE id = ANY(:tenant_ids::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: task_claim_running
-- The number of running tasks of these tenants, including those with an expired lease that have not been ended yet.
-- Row comparisons force the index of running tasks. Otherwise the planner may use the index of all tasks of a tenant.
SELECT r.tenant_id, (
  SELECT count(*) FROM tasks AS t WHERE t.state = 'running'
    AND (t.state, t.tenant_id) >= ('running', r.tenant_id) AND (t.state, t.tenant_id) <= ('running', r.tenant_id)
) AS count
FROM unnest(:tenant_ids::uuid[]) AS r(tenant_id);

-- fragment: claim_deadline
-- The deadline of an attempt that begins with this claim.
{{attempt_deadline(m.at, t.timeout_seconds, coalesce(t.first_started_at, m.at), :total_seconds::double precision)}}

-- fragment: claim_picked
-- Claim the picked tasks, and return them in the form of a claim.
UPDATE tasks AS t SET state = 'running', attempt = t.attempt + 1, fence = t.fence + 1,
  lease_owner = (:workers::text[])[b.request], lease_seconds = (:lease_seconds::double precision[])[b.request],
  started_at = m.at, first_started_at = coalesce(t.first_started_at, m.at),
  deadline_at = {{claim_deadline}},
  lease_until = {{lease_end(m.at, (:lease_seconds::double precision[])[b.request], {{claim_deadline}})}},
  progress_fraction = NULL, progress_message = NULL, response = NULL
FROM picked AS p
CROSS JOIN moment AS m
CROSS JOIN LATERAL (SELECT width_bucket(p.place, :firsts::bigint[])) AS b(request)
WHERE t.id = p.id AND (t.state = 'ready') IS TRUE
RETURNING b.request, p.place, p.step, t.id, t.tenant_id, t.type, t.queue, t.payload, t.payload_ref, t.attempt, t.max_attempts,
  t.fence, t.lease_until,
  t.lease_seconds, t.scheduled_for, t.schedule_name AS schedule, t.schedule_id, t.origin, t.timeout_seconds,
  t.traceparent, {{seconds_between(greatest(t.run_at, t.created_at, t.ready_at), m.at)}} AS waited_seconds

-- name: task_claim
-- Claim ready tasks under leases, of each step in order. The attempt is counted at the claim, so that a task that crashes its
-- worker cannot be retried forever.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
picked AS MATERIALIZED (
  SELECT p.id, p.step, row_number() OVER (ORDER BY p.step, p.run_at, p.id) AS place FROM (
    SELECT t.id, t.run_at, s.step
    FROM unnest(:tenant_ids::uuid[], :priorities::integer[], :fair_keys::text[], :limits::bigint[], :first_queue_types::integer[],
      :last_queue_types::integer[]) WITH ORDINALITY AS s(tenant_id, priority, fair_key, max_count, first, last, step)
    CROSS JOIN LATERAL (
      SELECT o.id, o.run_at FROM (
        -- With several queues or types, first count how many tasks of each are among the oldest, so that only those are locked.
        SELECT (:queues::text[])[s.first], (:types::text[])[s.first], s.max_count WHERE s.first = s.last
          AND NOT {{is_paused(s.tenant_id, (:queues::text[])[s.first], (SELECT at FROM moment))}}
        UNION ALL
        SELECT c.queue, c.type, count(*) FROM (
          SELECT a.queue, a.type
          FROM unnest((:queues::text[])[s.first:s.last], (:types::text[])[s.first:s.last]) AS a(queue, type)
          CROSS JOIN LATERAL (
            SELECT run_at, id FROM tasks
            WHERE tasks.queue = a.queue AND tenant_id = s.tenant_id AND priority = s.priority AND fair_key = s.fair_key
              AND tasks.type = a.type AND state = 'ready'
            ORDER BY run_at, id LIMIT s.max_count
          ) AS o
          ORDER BY o.run_at, o.id LIMIT s.max_count
        ) AS c WHERE s.first < s.last AND NOT {{is_paused(s.tenant_id, c.queue, (SELECT at FROM moment))}}
        GROUP BY c.queue, c.type
      ) AS queue_type(queue, type, max_count)
      CROSS JOIN LATERAL (
        SELECT id, run_at FROM tasks
        WHERE tasks.queue = queue_type.queue AND tenant_id = s.tenant_id AND priority = s.priority AND fair_key = s.fair_key
          AND tasks.type = queue_type.type AND state = 'ready'
        ORDER BY run_at, id LIMIT queue_type.max_count FOR UPDATE SKIP LOCKED
      ) AS o
      ORDER BY o.run_at, o.id
    ) AS t
    LIMIT :limit
  ) AS p
)
{{claim_picked}};

-- name: task_claim_triggered
-- Claim tasks of manual triggers in paused queues, the oldest first. Tasks of the excluded tenants stay ready.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
picked AS MATERIALIZED (
  SELECT p.id, 1::bigint AS step, row_number() OVER (ORDER BY p.run_at, p.id) AS place FROM (
    SELECT t.id, t.run_at FROM tasks AS t
    WHERE t.state = 'ready' AND t.origin = 'trigger' AND t.queue = ANY(:queues::text[])
      AND (:tenant_id::uuid IS NULL OR t.tenant_id = :tenant_id) AND (:types::text[] IS NULL OR t.type = ANY(:types))
      AND t.tenant_id <> ALL(:excluded::uuid[]) AND {{is_paused(t.tenant_id, t.queue, (SELECT at FROM moment))}}
    ORDER BY t.run_at, t.id LIMIT :limit FOR UPDATE OF t SKIP LOCKED
  ) AS p
)
{{claim_picked}};

-- fragment: lease_is_valid
-- Whether the lease that the report r names is valid, for the task t.
t.fence = r.fence AND t.tenant_id = coalesce(r.tenant_id, t.tenant_id) AND t.state = 'running' AND t.lease_until > m.at

-- name: task_heartbeat
-- Renew leases up to their deadlines. A lease with a cancel request or an expired lease is not renewed. Tasks that another
-- transaction has locked are not changed; they are returned as they are.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
reported AS (
  SELECT * FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :fractions::double precision[], :messages::text[],
    :log_bytes::integer[]) AS r(tenant_id, id, fence, fraction, message, log_bytes)
),
locked AS MATERIALIZED (
  SELECT r.* FROM reported AS r CROSS JOIN moment AS m JOIN tasks AS t ON t.id = r.id WHERE ({{lease_is_valid}}) IS TRUE
  FOR NO KEY UPDATE OF t SKIP LOCKED
),
renewed AS (
  UPDATE tasks AS t SET
    lease_until = CASE WHEN t.cancel_requested THEN t.lease_until
      ELSE {{lease_end(m.at, t.lease_seconds, {{deadline_of_task}})}} END,
    progress_fraction = coalesce(r.fraction, t.progress_fraction),
    progress_message = coalesce(r.message, t.progress_message),
    log_bytes = least(t.log_bytes::bigint + r.log_bytes, 2147483647)
  FROM locked AS r CROSS JOIN moment AS m
  WHERE t.id = r.id AND ({{lease_is_valid}}) IS TRUE
  RETURNING r.tenant_id AS lease_tenant_id, t.tenant_id, t.id, t.fence, t.lease_until, t.cancel_requested, t.attempt,
    t.lease_owner AS worker, t.log_bytes, m.at AS moment, false AS is_locked
)
SELECT * FROM renewed
UNION ALL
SELECT r.tenant_id, t.tenant_id, t.id, t.fence, t.lease_until, t.cancel_requested, t.attempt, t.lease_owner, t.log_bytes, m.at,
  true
FROM reported AS r CROSS JOIN moment AS m JOIN tasks AS t ON t.id = r.id
-- The first condition is evaluated once: nothing is read if no task was skipped.
WHERE (SELECT count(*) FROM locked) < (SELECT count(*) FROM reported)
  AND ({{lease_is_valid}} AND r.id NOT IN (SELECT l.id FROM locked AS l)) IS TRUE;

-- name: task_log_insert
-- Insert log lines of attempts.
INSERT INTO task_log (task_id, id, tenant_id, at, attempt, worker, text)
SELECT * FROM unnest(:task_ids::uuid[], :ids::uuid[], :tenant_ids::uuid[], :ats::timestamptz[], :attempts::integer[],
  :workers::text[], :texts::text[]);

-- fragment: reported_completions
-- The completions that workers and destinations have reported.
unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :results::text[], :responses::text[])
  AS r(tenant_id, id, fence, result, response)

-- fragment: completed_task
-- What a completion returns of the finished task t and its report r.
t.*, r.result, coalesce(r.response, t.response) AS final_response, m.at AS finished_at

-- fragment: move_completed
-- Insert the finished tasks into history, and return them.
INSERT INTO task_history (id, tenant_id, {{copied_columns}}, run_at, state, attempt, worker, fence, traceparent,
  progress_fraction, progress_message, result, response, outcome, created_at, started_at, finished_at)
SELECT id, tenant_id, {{copied_columns}}, run_at, 'completed', attempt, lease_owner, fence, traceparent,
  progress_fraction, progress_message, result, final_response, 'completed', created_at, started_at, finished_at
FROM finished
RETURNING id, fence, schedule_id, tenant_id, queue, type, attempt, worker,
  {{seconds_between(started_at, finished_at)}} AS ran_seconds, timeout_seconds, traceparent, false AS is_locked

-- name: task_complete
-- Move running tasks with valid leases to history as completed. Fails if another transaction has locked one of them for some
-- milliseconds: then nothing is changed.
WITH moment AS MATERIALIZED (
  SELECT coalesce(:now::timestamptz, now()) AS at, set_config('lock_timeout', :lock_timeout, true)
),
finished AS (
  -- IS TRUE leaves the planner only the primary key, regardless of its statistics.
  DELETE FROM tasks AS t USING {{reported_completions}}, moment AS m WHERE t.id = r.id AND ({{lease_is_valid}}) IS TRUE
  RETURNING {{completed_task}}
)
{{move_completed}};

-- name: task_complete_unlocked
-- As task_complete, without the tasks that another transaction has locked. They are returned as locked. Locking each row
-- before it is deleted takes a third of the time of a completion, so this is used only after task_complete has failed.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
reported AS (SELECT * FROM {{reported_completions}}),
locked AS MATERIALIZED (
  SELECT r.* FROM reported AS r CROSS JOIN moment AS m JOIN tasks AS t ON t.id = r.id
  WHERE ({{lease_is_valid}}) IS TRUE
  FOR UPDATE OF t SKIP LOCKED
),
finished AS (
  DELETE FROM tasks AS t USING locked AS r, moment AS m WHERE t.id = r.id AND ({{lease_is_valid}}) IS TRUE
  RETURNING {{completed_task}}
),
moved AS (
  {{move_completed}}
)
SELECT * FROM moved
UNION ALL
SELECT t.id, t.fence, t.schedule_id, t.tenant_id, t.queue, t.type, t.attempt, t.lease_owner, NULL, NULL, NULL, true
FROM reported AS r CROSS JOIN moment AS m JOIN tasks AS t ON t.id = r.id
WHERE (SELECT count(*) FROM locked) < (SELECT count(*) FROM reported)
  AND ({{lease_is_valid}} AND r.id NOT IN (SELECT l.id FROM locked AS l)) IS TRUE;

-- name: task_completed
-- The tasks among these that were completed earlier with the same fence.
SELECT h.id, h.fence FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[]) AS r(tenant_id, id, fence)
-- OFFSET 0 forces an index lookup for each task. The planner may otherwise estimate that one scan of the history costs less.
CROSS JOIN LATERAL (
  SELECT id, fence FROM task_history
  WHERE id = r.id AND fence = r.fence AND tenant_id = coalesce(r.tenant_id, tenant_id) AND state = 'completed' OFFSET 0
) AS h;

-- name: task_queues
-- The queues of tasks, live or finished.
SELECT id, queue FROM tasks WHERE id = ANY(:ids::uuid[])
UNION ALL
SELECT h.id, h.queue FROM unnest(:ids::uuid[]) AS r(id)
CROSS JOIN LATERAL (SELECT id, queue FROM task_history WHERE id = r.id OFFSET 0) AS h;

-- name: task_targets
-- The targets of live tasks.
SELECT id, target FROM tasks WHERE id = ANY(:ids::uuid[]);

-- name: task_accept
-- Keep running tasks that their destination has accepted, and store its response, if there is one. Their leases end after
-- the given time without a heartbeat, and at the latest at their deadlines.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at)
UPDATE tasks AS t SET lease_seconds = a.lease_seconds, response = coalesce(a.response, t.response),
  lease_until = CASE WHEN t.cancel_requested THEN t.lease_until
    ELSE {{lease_end(m.at, a.lease_seconds, {{deadline_of_task}})}} END
FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :lease_seconds::double precision[], :responses::text[])
  AS a(tenant_id, id, fence, lease_seconds, response)
CROSS JOIN moment AS m
WHERE t.id = a.id
  AND (t.fence = a.fence AND t.tenant_id = coalesce(a.tenant_id, t.tenant_id) AND t.state = 'running' AND t.lease_until > m.at) IS TRUE
RETURNING t.id, t.fence, t.lease_until, t.cancel_requested;

-- name: task_running
-- Tasks whose leases are valid, with the columns that the retry decision needs.
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  {{deadline_of_task}} AS deadline_at,
  coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[]) AS r(tenant_id, id, fence)
JOIN tasks AS t ON t.id = r.id
WHERE (t.fence = r.fence AND t.tenant_id = coalesce(r.tenant_id, t.tenant_id) AND t.state = 'running'
  AND t.lease_until > coalesce(:now::timestamptz, now())) IS TRUE;

-- name: task_expired
-- Running tasks with an expired lease.
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  {{deadline_of_task}} AS deadline_at,
  coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM tasks AS t
WHERE t.state = 'running' AND t.lease_until <= coalesce(:now::timestamptz, now())
ORDER BY t.lease_until LIMIT :limit;

-- fragment: lease_is_ahead(at)
-- Whether the lease of the task t ends later than any lease that is granted now: it was granted or renewed before the clock of
-- the database was set back. The lease_seconds of tasks that nodes of the first version have claimed are not known.
t.state = 'running' AND t.deadline_at IS NOT NULL AND t.lease_until > at + make_interval(secs => t.lease_seconds * 1.5)

-- name: task_leases_ahead
-- Running tasks with a lease that ends later than it can by this clock.
SELECT t.id FROM tasks AS t CROSS JOIN (SELECT coalesce(:now::timestamptz, now()) AS at) AS m
WHERE t.state = 'running' AND t.lease_until > coalesce(:now::timestamptz, now()) AND {{lease_is_ahead(m.at)}}
ORDER BY t.lease_until DESC LIMIT :limit;

-- name: task_shorten_leases
-- Let these leases end after their length from now. Tasks that another transaction has locked are not changed.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
ahead AS MATERIALIZED (
  SELECT t.id FROM unnest(:ids::uuid[]) AS r(id) CROSS JOIN moment AS m JOIN tasks AS t ON t.id = r.id
  WHERE ({{lease_is_ahead(m.at)}}) IS TRUE FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE tasks AS t SET lease_until = m.at + make_interval(secs => t.lease_seconds)
FROM ahead AS a CROSS JOIN moment AS m WHERE t.id = a.id AND ({{lease_is_ahead(m.at)}}) IS TRUE;

-- fragment: lease_is_ending
-- Whether the attempt that e ends has a valid lease, or an expired one if is_expired is set, for the task t.
t.fence = e.fence AND t.tenant_id = e.tenant_id AND t.state = 'running' AND (t.lease_until <= m.at) = :is_expired::boolean

-- name: task_end
-- Put back tasks whose attempt did not end them, and store the attempts. A released task is not charged an attempt. Tasks that
-- another transaction has locked are not changed; they are returned as locked.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
ending AS (
  SELECT * FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :outcomes::text[], :states::text[],
    :run_ats::timestamptz[], :errors::text[], :responses::text[])
    AS e(tenant_id, id, fence, outcome, state, run_at, error, response)
),
old AS MATERIALIZED (
  SELECT t.id, t.tenant_id, t.fence, t.attempt, t.lease_owner, t.started_at, e.outcome, e.state, e.run_at, e.error,
    coalesce(e.response, t.response) AS response
  FROM ending AS e CROSS JOIN moment AS m JOIN tasks AS t ON t.id = e.id
  -- A task that got a cancel request after it was read is not put back. The caller has to decide again.
  WHERE (NOT t.cancel_requested AND {{lease_is_ending}}) IS TRUE
  FOR UPDATE OF t SKIP LOCKED
),
moved AS (
  UPDATE tasks AS t SET state = o.state, run_at = coalesce(o.run_at, t.run_at),
    attempt = t.attempt - CASE WHEN o.outcome = 'released' THEN 1 ELSE 0 END,
    error = coalesce(o.error, t.error), lease_owner = NULL, lease_until = NULL, ready_at = m.at
  FROM old AS o CROSS JOIN moment AS m WHERE t.id = o.id AND (t.state = 'running') IS TRUE
  RETURNING {{t.change_columns}}, t.fence, o.lease_owner AS worker, {{seconds_between(o.started_at, m.at)}} AS ran_seconds,
    t.timeout_seconds, t.traceparent
),
kept AS (
  INSERT INTO attempts (task_id, tenant_id, fence, attempt, worker, started_at, ended_at, outcome, error, response)
  SELECT o.id, o.tenant_id, o.fence, o.attempt, o.lease_owner, o.started_at, m.at, o.outcome, o.error, o.response
  FROM old AS o CROSS JOIN moment AS m
)
SELECT {{change_columns}}, fence, worker, ran_seconds, timeout_seconds, traceparent, false AS is_locked FROM moved
UNION ALL
SELECT {{t.change_columns}}, t.fence, t.lease_owner, NULL, NULL, NULL, true
FROM ending AS e CROSS JOIN moment AS m JOIN tasks AS t ON t.id = e.id
WHERE (SELECT count(*) FROM old) < (SELECT count(*) FROM ending)
  AND (NOT t.cancel_requested AND {{lease_is_ending}} AND e.id NOT IN (SELECT o.id FROM old AS o)) IS TRUE;

-- name: task_finish
-- Move tasks to history that their attempt ended without completing them. Dead tasks also get a dead letter. Tasks that another
-- transaction has locked are not changed; they are returned as locked.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
ending AS (
  SELECT * FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :outcomes::text[], :states::text[],
    :errors::text[], :reasons::text[], :responses::text[]) AS e(tenant_id, id, fence, outcome, state, error, reason, response)
),
locked AS MATERIALIZED (
  SELECT e.* FROM ending AS e CROSS JOIN moment AS m JOIN tasks AS t ON t.id = e.id WHERE ({{lease_is_ending}}) IS TRUE
  FOR UPDATE OF t SKIP LOCKED
),
finished AS (
  DELETE FROM tasks AS t USING locked AS e, moment AS m WHERE t.id = e.id AND ({{lease_is_ending}}) IS TRUE
  RETURNING t.id, t.tenant_id, {{t.copied_columns}}, t.run_at, t.attempt, t.lease_owner,
    t.fence, t.traceparent, t.progress_fraction, t.progress_message, t.created_at, t.started_at,
    e.outcome, e.state AS final_state, coalesce(e.error, t.error) AS final_error, e.reason,
    coalesce(e.response, t.response) AS response, m.at AS finished_at
),
dead AS (
  INSERT INTO dead_letters (task_id, tenant_id, {{copied_columns}}, attempt, reason, error, worker, created_at, died_at)
  SELECT id, tenant_id, {{copied_columns}}, attempt, coalesce(reason, outcome), final_error, lease_owner, created_at,
    finished_at
  FROM finished WHERE final_state = 'dead'
),
moved AS (
  INSERT INTO task_history (id, tenant_id, {{copied_columns}}, run_at, state, attempt, worker, fence, traceparent,
    progress_fraction, progress_message, error, reason, response, outcome, created_at, started_at, finished_at)
  SELECT id, tenant_id, {{copied_columns}}, run_at, final_state, attempt, lease_owner, fence, traceparent,
    progress_fraction,
    progress_message, final_error, reason, response, outcome, created_at, started_at, finished_at
  FROM finished
  RETURNING id, fence, schedule_id, tenant_id, queue, type, attempt, worker,
    {{seconds_between(started_at, finished_at)}} AS ran_seconds, timeout_seconds, traceparent, false AS is_locked
)
SELECT * FROM moved
UNION ALL
SELECT t.id, t.fence, t.schedule_id, t.tenant_id, t.queue, t.type, t.attempt, t.lease_owner, NULL, NULL, NULL, true
FROM ending AS e CROSS JOIN moment AS m JOIN tasks AS t ON t.id = e.id
WHERE (SELECT count(*) FROM locked) < (SELECT count(*) FROM ending)
  AND ({{lease_is_ending}} AND e.id NOT IN (SELECT l.id FROM locked AS l)) IS TRUE;

-- name: task_ended
-- How attempts with these fences were ended earlier.
SELECT a.task_id AS id, a.fence, a.outcome, NULL::text AS state
FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[]) AS r(tenant_id, id, fence)
CROSS JOIN LATERAL (
  SELECT task_id, fence, outcome FROM attempts
  WHERE task_id = r.id AND fence = r.fence AND tenant_id = coalesce(r.tenant_id, tenant_id) OFFSET 0
) AS a
UNION ALL
SELECT h.id, h.fence, h.outcome, h.state
FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[]) AS r(tenant_id, id, fence)
CROSS JOIN LATERAL (
  SELECT id, fence, outcome, state FROM task_history
  WHERE id = r.id AND fence = r.fence AND tenant_id = coalesce(r.tenant_id, tenant_id) AND outcome IS NOT NULL OFFSET 0
) AS h;
