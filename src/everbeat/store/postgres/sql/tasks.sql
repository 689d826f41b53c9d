-- name: task_submit
-- New tasks: ready, or scheduled if their time is to come. What many tasks have in common, their shape, is sent once.
-- All of their idempotency keys must be free: if one is not, the division by zero undoes everything.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
won AS (
  INSERT INTO task_keys AS k (tenant_id, key, task_id, fingerprint, expires_at)
  SELECT n.tenant_id, n.key, n.task_id, n.fingerprint, coalesce(:now::timestamptz, now()) + interval '24 hours'
  FROM unnest(:key_tenant_ids::uuid[], :keys::text[], :key_task_ids::uuid[], :fingerprints::bytea[])
    AS n(tenant_id, key, task_id, fingerprint)
  -- In one order everywhere, so that two batches with the same keys wait for each other and do not deadlock.
  ORDER BY n.tenant_id, n.key
  ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
    expires_at = excluded.expires_at
  WHERE k.expires_at <= coalesce(:now::timestamptz, now())
  RETURNING k.task_id
),
queued AS (
  INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
    scheduled_for, run_at, priority, state, max_attempts, retry, timeout_seconds, labels, fair_key, traceparent, created_at,
    lease_owner, lease_seconds, attempt, fence, started_at, first_started_at, deadline_at, lease_until)
  SELECT t.id, (:tenant_ids::uuid[])[t.shape], t.partition, (:queues::text[])[t.shape], (:types::text[])[t.shape],
    (:targets::text[])[t.shape], t.payload, t.payload_ref, (:origins::text[])[t.shape], (:schedule_ids::uuid[])[t.shape],
    (:schedule_names::text[])[t.shape], (:scheduled_fors::timestamptz[])[t.shape], r.run_at,
    (:priorities::integer[])[t.shape],
    CASE WHEN l.owner IS NOT NULL THEN 'running' WHEN r.run_at > m.at THEN 'scheduled' ELSE 'ready' END,
    (:max_attempts::integer[])[t.shape], (:retries::text[])[t.shape], (:timeouts::double precision[])[t.shape],
    (:labels::text[])[t.shape], (:fair_keys::text[])[t.shape], (:traceparents::text[])[t.shape], m.at,
    l.owner, l.seconds, l.count, l.count, l.at, l.at, l.at + l.deadline,
    least(l.at + make_interval(secs => l.seconds), l.at + l.deadline)
  FROM moment AS m, unnest(:ids::uuid[], :partitions::smallint[], :payloads::text[], :payload_refs::text[],
    :shapes::integer[]) AS t(id, partition, payload, payload_ref, shape)
  CROSS JOIN LATERAL (
    SELECT coalesce((:run_ats::timestamptz[])[t.shape],
      m.at + make_interval(secs => (:delays::double precision[])[t.shape]), m.at)
  ) AS r(run_at)
  CROSS JOIN LATERAL (
    SELECT (:lease_owners::text[])[t.shape], (:lease_seconds::double precision[])[t.shape],
      CASE WHEN (:lease_owners::text[])[t.shape] IS NULL THEN 0 ELSE 1 END,
      CASE WHEN (:lease_owners::text[])[t.shape] IS NULL THEN NULL ELSE m.at END,
      make_interval(secs => (:deadlines::double precision[])[t.shape])
  ) AS l(owner, seconds, count, at, deadline)
)
SELECT at AS moment, 1 / CASE WHEN (SELECT count(*) FROM won) = cardinality(:keys::text[]) THEN 1 ELSE 0 END AS is_free
FROM moment;

-- name: task_key_insert
-- Take idempotency keys for a day; an expired one gives way. Only those that could be taken come back.
INSERT INTO task_keys AS k (tenant_id, key, task_id, fingerprint, expires_at)
SELECT n.tenant_id, n.key, n.task_id, n.fingerprint, coalesce(:now::timestamptz, now()) + interval '24 hours'
FROM unnest(:key_tenant_ids::uuid[], :keys::text[], :key_task_ids::uuid[], :fingerprints::bytea[])
  AS n(tenant_id, key, task_id, fingerprint)
-- In one order everywhere, so that two batches with the same keys wait for each other and do not deadlock.
ORDER BY n.tenant_id, n.key
ON CONFLICT (tenant_id, key) DO UPDATE SET task_id = excluded.task_id, fingerprint = excluded.fingerprint,
  expires_at = excluded.expires_at
WHERE k.expires_at <= coalesce(:now::timestamptz, now())
RETURNING task_id;

-- name: task_key_find
-- What keys stand for.
SELECT k.tenant_id, k.key, k.task_id, k.fingerprint
FROM unnest(:tenant_ids::uuid[], :keys::text[]) AS n(tenant_id, key)
JOIN task_keys AS k ON k.tenant_id = n.tenant_id AND k.key = n.key;

-- name: task_flows
-- Flows with ready tasks, of tenants up to the last one, after the place given for each queue. Found by hopping from one to the
-- next: one index seek each, however many tasks lie between.
SELECT f.queue, f.tenant_id, f.priority, f.fair_key, f.type
FROM unnest(:queues::text[], :tenant_ids::uuid[], :priorities::integer[], :fair_keys::text[], :types::text[])
  AS q(queue, tenant_id, priority, fair_key, type)
CROSS JOIN LATERAL (
  WITH RECURSIVE hop(queue, tenant_id, priority, fair_key, type) AS (
    SELECT q.queue, q.tenant_id, q.priority, q.fair_key, q.type
    UNION ALL
    SELECT n.queue, n.tenant_id, n.priority, n.fair_key, n.type FROM hop CROSS JOIN LATERAL (
      -- In the order of the whole index, so that no other one will do; where the queue or the tenants end, the hopping does.
      SELECT t.queue, t.tenant_id, t.priority, t.fair_key, t.type FROM tasks AS t
      WHERE t.state = 'ready' AND (t.queue, t.tenant_id, t.priority, t.fair_key, t.type)
        > (hop.queue, hop.tenant_id, hop.priority, hop.fair_key, hop.type)
      ORDER BY t.queue, t.tenant_id, t.priority, t.fair_key, t.type LIMIT 1
    ) AS n
    WHERE n.queue = hop.queue AND n.tenant_id <= :last_tenant_id
  )
  SELECT * FROM hop OFFSET 1 LIMIT :limit
) AS f;

-- name: task_claim_tenants
-- Tenants that may run only so many at a time, locked: whoever claims for one of them waits, so that none counts too few.
SELECT id, max_running FROM tenants WHERE id = ANY(:tenant_ids::uuid[]) ORDER BY id FOR UPDATE;

-- name: task_claim_running
-- How many tasks of these tenants are running, also those whose lease has run out and which nobody has ended yet.
-- Pairs are compared so that only the index of running tasks will do: that of all tasks of a tenant begins alike.
SELECT r.tenant_id, (
  SELECT count(*) FROM tasks AS t WHERE t.state = 'running'
    AND (t.state, t.tenant_id) >= ('running', r.tenant_id) AND (t.state, t.tenant_id) <= ('running', r.tenant_id)
) AS count
FROM unnest(:tenant_ids::uuid[]) AS r(tenant_id);

-- name: task_claim
-- Take ready tasks under a lease, of each share in turn; attempts are counted here, so that a task that kills its worker
-- still dies in the end.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
picked AS MATERIALIZED (
  SELECT p.id, p.share, row_number() OVER (ORDER BY p.share, p.run_at, p.id) AS place FROM (
    SELECT t.id, t.run_at, s.share
    FROM unnest(:tenant_ids::uuid[], :priorities::integer[], :fair_keys::text[], :limits::bigint[], :first_queue_types::integer[],
      :last_queue_types::integer[]) WITH ORDINALITY AS s(tenant_id, priority, fair_key, most, first, last, share)
    CROSS JOIN LATERAL (
      SELECT o.id, o.run_at FROM (
        -- Of several lanes, how many of each are among the oldest: only those are locked, not the first ones of every lane.
        SELECT (:queues::text[])[s.first], (:types::text[])[s.first], s.most WHERE s.first = s.last
        UNION ALL
        SELECT c.queue, c.type, count(*) FROM (
          SELECT a.queue, a.type
          FROM unnest((:queues::text[])[s.first:s.last], (:types::text[])[s.first:s.last]) AS a(queue, type)
          CROSS JOIN LATERAL (
            SELECT run_at, id FROM tasks
            WHERE tasks.queue = a.queue AND tenant_id = s.tenant_id AND priority = s.priority AND fair_key = s.fair_key
              AND tasks.type = a.type AND state = 'ready'
            ORDER BY run_at, id LIMIT s.most
          ) AS o
          ORDER BY o.run_at, o.id LIMIT s.most
        ) AS c WHERE s.first < s.last GROUP BY c.queue, c.type
      ) AS lane(queue, type, most)
      CROSS JOIN LATERAL (
        SELECT id, run_at FROM tasks
        WHERE tasks.queue = lane.queue AND tenant_id = s.tenant_id AND priority = s.priority AND fair_key = s.fair_key
          AND tasks.type = lane.type AND state = 'ready'
        ORDER BY run_at, id LIMIT lane.most FOR UPDATE SKIP LOCKED
      ) AS o
      ORDER BY o.run_at, o.id
    ) AS t
    LIMIT :limit
  ) AS p
)
UPDATE tasks AS t SET state = 'running', attempt = t.attempt + 1, fence = t.fence + 1,
  lease_owner = (:workers::text[])[b.request], lease_seconds = (:lease_seconds::double precision[])[b.request],
  started_at = m.at, first_started_at = coalesce(t.first_started_at, m.at),
  deadline_at = least(m.at + make_interval(secs => t.timeout_seconds),
    coalesce(t.first_started_at, m.at) + make_interval(secs => :total_seconds::double precision)),
  lease_until = least(m.at + make_interval(secs => (:lease_seconds::double precision[])[b.request]),
    m.at + make_interval(secs => t.timeout_seconds),
    coalesce(t.first_started_at, m.at) + make_interval(secs => :total_seconds::double precision)),
  progress_fraction = NULL, progress_message = NULL
FROM picked AS p
CROSS JOIN moment AS m
CROSS JOIN LATERAL (SELECT width_bucket(p.place, :firsts::bigint[])) AS b(request)
WHERE t.id = p.id AND (t.state = 'ready') IS TRUE
RETURNING b.request, p.place, p.share, t.id, t.tenant_id, t.type, t.queue, t.payload, t.payload_ref, t.attempt, t.max_attempts,
  t.fence, t.lease_until,
  t.lease_seconds, t.scheduled_for, t.schedule_name AS schedule, t.schedule_id, t.origin, t.timeout_seconds,
  t.traceparent;

-- name: task_heartbeat
-- Renew leases up to their deadlines; one that is to be cancelled, or has run out, is not renewed.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at)
UPDATE tasks AS t SET
  lease_until = CASE WHEN t.cancel_requested THEN t.lease_until
    ELSE least(m.at + make_interval(secs => t.lease_seconds), t.deadline_at) END,
  progress_fraction = coalesce(b.fraction, t.progress_fraction),
  progress_message = coalesce(b.message, t.progress_message),
  log_bytes = least(t.log_bytes::bigint + b.log_bytes, 2147483647)
FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :fractions::double precision[], :messages::text[],
  :log_bytes::integer[]) AS b(tenant_id, id, fence, fraction, message, log_bytes)
CROSS JOIN moment AS m
WHERE t.id = b.id
  AND (t.fence = b.fence AND t.tenant_id = coalesce(b.tenant_id, t.tenant_id) AND t.state = 'running' AND t.lease_until > m.at) IS TRUE
RETURNING b.tenant_id AS holder, t.tenant_id, t.id, t.fence, t.lease_until, t.cancel_requested, t.attempt, t.lease_owner AS worker, t.log_bytes,
  m.at AS moment;

-- name: task_log_insert
-- Log lines of attempts.
INSERT INTO task_log (task_id, id, tenant_id, at, attempt, worker, text)
SELECT * FROM unnest(:task_ids::uuid[], :ids::uuid[], :tenant_ids::uuid[], :ats::timestamptz[], :attempts::integer[],
  :workers::text[], :texts::text[]);

-- name: task_complete
-- Move running tasks to history under their lease.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
finished AS (
  DELETE FROM tasks AS t
  USING unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :results::text[]) AS r(tenant_id, id, fence, result),
    moment AS m
  -- IS TRUE leaves only the primary key to find the row by, whatever the planner believes of the other indexes.
  WHERE t.id = r.id
    AND (t.fence = r.fence AND t.tenant_id = coalesce(r.tenant_id, t.tenant_id) AND t.state = 'running' AND t.lease_until > m.at) IS TRUE
  RETURNING t.*, r.result, m.at AS finished_at
)
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, worker, fence, traceparent,
  progress_fraction, progress_message, result, outcome, created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, run_at,
  priority, 'completed', attempt, max_attempts, retry, timeout_seconds, labels, fair_key, lease_owner, fence, traceparent,
  progress_fraction,
  progress_message, result, 'completed', created_at, started_at, finished_at
FROM finished
RETURNING id, fence, schedule_id, tenant_id;

-- name: task_completed
-- Which of these were completed before under the same fence.
SELECT h.id, h.fence FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[]) AS r(tenant_id, id, fence)
-- OFFSET 0 keeps each look-up one by its index: the planner may believe that reading the whole history once costs less.
CROSS JOIN LATERAL (
  SELECT id, fence FROM task_history
  WHERE id = r.id AND fence = r.fence AND tenant_id = coalesce(r.tenant_id, tenant_id) AND state = 'completed' OFFSET 0
) AS h;

-- name: task_queues
-- Which queues tasks are of, live or finished.
SELECT id, queue FROM tasks WHERE id = ANY(:ids::uuid[])
UNION ALL
SELECT h.id, h.queue FROM unnest(:ids::uuid[]) AS r(id)
CROSS JOIN LATERAL (SELECT id, queue FROM task_history WHERE id = r.id OFFSET 0) AS h;

-- name: task_running
-- Leases that hold, with what deciding about them needs.
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  coalesce(t.deadline_at, t.started_at + make_interval(secs => t.timeout_seconds)) AS deadline_at,
  coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[]) AS r(tenant_id, id, fence)
JOIN tasks AS t ON t.id = r.id
WHERE (t.fence = r.fence AND t.tenant_id = coalesce(r.tenant_id, t.tenant_id) AND t.state = 'running'
  AND t.lease_until > coalesce(:now::timestamptz, now())) IS TRUE;

-- name: task_expired
-- Running tasks whose lease has run out.
SELECT t.id, t.tenant_id, t.queue, t.fence, t.attempt, t.max_attempts, t.retry, t.cancel_requested,
  coalesce(t.deadline_at, t.started_at + make_interval(secs => t.timeout_seconds)) AS deadline_at,
  coalesce(t.first_started_at, t.started_at) AS first_started_at
FROM tasks AS t
WHERE t.state = 'running' AND t.lease_until <= coalesce(:now::timestamptz, now())
ORDER BY t.lease_until LIMIT :limit;

-- name: task_end
-- Put tasks back whose attempt ended without ending them; the attempt is kept. Released work does not count as one.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
ending AS (
  SELECT * FROM unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :outcomes::text[], :states::text[],
    :run_ats::timestamptz[], :errors::text[]) AS e(tenant_id, id, fence, outcome, state, run_at, error)
),
old AS MATERIALIZED (
  SELECT t.id, t.tenant_id, t.fence, t.attempt, t.lease_owner, t.started_at, e.outcome, e.state, e.run_at, e.error
  FROM ending AS e CROSS JOIN moment AS m JOIN tasks AS t ON t.id = e.id
  -- One that was told to stop since it was looked at is not put back: that is to be decided anew.
  WHERE (t.fence = e.fence AND t.tenant_id = e.tenant_id AND t.state = 'running' AND NOT t.cancel_requested
    AND (t.lease_until <= m.at) = :is_expired::boolean) IS TRUE
  FOR UPDATE OF t
),
moved AS (
  UPDATE tasks AS t SET state = o.state, run_at = coalesce(o.run_at, t.run_at),
    attempt = t.attempt - CASE WHEN o.outcome = 'released' THEN 1 ELSE 0 END,
    error = coalesce(o.error, t.error), lease_owner = NULL, lease_until = NULL
  FROM old AS o WHERE t.id = o.id AND (t.state = 'running') IS TRUE
  RETURNING t.id, t.fence, t.schedule_id
),
kept AS (
  INSERT INTO attempts (task_id, tenant_id, fence, attempt, worker, started_at, ended_at, outcome, error)
  SELECT o.id, o.tenant_id, o.fence, o.attempt, o.lease_owner, o.started_at, m.at, o.outcome, o.error
  FROM old AS o CROSS JOIN moment AS m
)
SELECT id, fence, schedule_id FROM moved;

-- name: task_finish
-- Move tasks to history whose attempt ended them without completing; the dead ones get a dead letter.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
finished AS (
  DELETE FROM tasks AS t
  USING unnest(:tenant_ids::uuid[], :ids::uuid[], :fences::bigint[], :outcomes::text[], :states::text[], :errors::text[],
    :reasons::text[]) AS e(tenant_id, id, fence, outcome, state, error, reason), moment AS m
  WHERE t.id = e.id AND (t.fence = e.fence AND t.tenant_id = e.tenant_id AND t.state = 'running'
    AND (t.lease_until <= m.at) = :is_expired::boolean) IS TRUE
  RETURNING t.id, t.tenant_id, t.queue, t.type, t.target, t.payload, t.payload_ref, t.origin, t.schedule_id, t.schedule_name,
    t.scheduled_for, t.run_at, t.priority, t.attempt, t.max_attempts, t.retry, t.timeout_seconds, t.labels, t.fair_key, t.lease_owner,
    t.fence, t.traceparent, t.progress_fraction, t.progress_message, t.created_at, t.started_at,
    e.outcome, e.state AS final_state, coalesce(e.error, t.error) AS final_error, e.reason, m.at AS finished_at
),
buried AS (
  INSERT INTO dead_letters (task_id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
    scheduled_for, priority, max_attempts, retry, timeout_seconds, labels, fair_key, attempt, reason, error, worker, created_at, died_at)
  SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, priority,
    max_attempts, retry, timeout_seconds, labels, fair_key, attempt, coalesce(reason, outcome), final_error, lease_owner, created_at,
    finished_at
  FROM finished WHERE final_state = 'dead'
)
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, worker, fence, traceparent,
  progress_fraction, progress_message, error, reason, outcome, created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, run_at,
  priority, final_state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, lease_owner, fence, traceparent,
  progress_fraction,
  progress_message, final_error, reason, outcome, created_at, started_at, finished_at
FROM finished
RETURNING id, fence, schedule_id;

-- name: task_ended
-- How attempts under these fences were ended before.
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

-- name: task_promote
-- Make delayed tasks ready whose time has come. Every node may: rows that another one has locked are passed over.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
due AS MATERIALIZED (
  SELECT id FROM tasks WHERE state = 'scheduled' AND run_at <= (SELECT at FROM moment)
  ORDER BY run_at LIMIT :limit FOR UPDATE SKIP LOCKED
),
promoted AS (
  UPDATE tasks AS t SET state = 'ready' FROM due AS d WHERE t.id = d.id AND (t.state = 'scheduled') IS TRUE
  RETURNING t.queue
)
SELECT m.at AS moment,
  (SELECT coalesce(array_agg(DISTINCT queue), '{}') FROM promoted) AS queues,
  (SELECT count(*) FROM promoted) AS count,
  (SELECT min(run_at) FROM tasks WHERE state = 'scheduled' AND run_at > m.at) AS next_at
FROM moment AS m;

-- name: task_release_held_schedules
-- Schedules with held tasks, locked: whoever fires or counts them waits. Paused ones keep what they hold.
SELECT s.id, s.overlap, s.concurrency FROM schedules AS s
WHERE s.id = ANY(:ids::uuid[]) AND s.status <> 'paused' ORDER BY s.id FOR UPDATE;

-- name: task_release_held_candidates
-- Which of these schedules hold tasks; those that are gone are told apart.
-- LIMIT 1 keeps each look-up one by its index: EXISTS may be answered by hashing all rows there are.
SELECT r.id AS schedule_id, (SELECT true FROM schedules AS s WHERE s.id = r.id LIMIT 1) IS TRUE AS is_there
FROM unnest(:ids::uuid[]) AS r(id)
CROSS JOIN LATERAL (SELECT 1 FROM tasks AS t WHERE t.state = 'held' AND t.schedule_id = r.id LIMIT 1) AS held
LIMIT :limit;

-- name: task_release_held_any
-- Schedules that hold tasks and have room for one, or something to replace: those that can only wait must not use up the limit.
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
-- What a newer held task of the same schedule replaces: gone if it has not started, else asked to stop.
SELECT t.id, t.tenant_id FROM tasks AS t
WHERE t.schedule_id = ANY(:ids::uuid[]) AND t.origin = 'tick' AND NOT t.cancel_requested AND EXISTS (
  SELECT 1 FROM tasks AS n WHERE n.schedule_id = t.schedule_id AND n.state = 'held' AND n.scheduled_for > t.scheduled_for);

-- name: task_release_held
-- Release held tasks in the order of their ticks, as many as their schedules have room for.
WITH room AS (
  SELECT s.id, s.concurrency - (
    SELECT count(*) FROM tasks AS t WHERE t.schedule_id = s.id AND t.state <> 'held' AND t.origin <> 'backfill'
  ) AS free
  FROM unnest(:ids::uuid[], :concurrencies::bigint[]) AS s(id, concurrency)
),
turn AS MATERIALIZED (
  SELECT h.id FROM room AS r CROSS JOIN LATERAL (
    SELECT id FROM tasks WHERE state = 'held' AND schedule_id = r.id ORDER BY scheduled_for, id LIMIT greatest(r.free, 0)
  ) AS h
)
UPDATE tasks AS t SET
  state = CASE WHEN t.run_at > coalesce(:now::timestamptz, now()) THEN 'scheduled' ELSE 'ready' END
FROM turn AS h WHERE t.id = h.id AND (t.state = 'held') IS TRUE
RETURNING t.queue;

-- name: task_hold
-- Keep what a schedule has fired and nobody has started, while it is paused.
UPDATE tasks SET state = 'held'
WHERE schedule_id = ANY(:ids::uuid[]) AND (tenant_id = :tenant_id) IS TRUE AND origin = 'tick'
  AND state IN ('ready', 'scheduled');

-- name: task_cancel_lock
-- Keep tasks as they are until they are cancelled; in one order everywhere, so that two who cancel do not deadlock.
SELECT id FROM tasks WHERE id = ANY(:ids::uuid[]) AND tenant_id = :tenant_id ORDER BY id FOR UPDATE;

-- name: task_cancel
-- Tasks that have not started end here.
WITH gone AS (
  DELETE FROM tasks AS t
  WHERE t.id = ANY(:ids::uuid[]) AND t.tenant_id = :tenant_id AND t.state IN ('held', 'scheduled', 'ready')
  RETURNING t.*
)
INSERT INTO task_history (id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name,
  scheduled_for, run_at, priority, state, attempt, max_attempts, retry, timeout_seconds, labels, fair_key, worker, fence, traceparent,
  error, reason,
  created_at, started_at, finished_at)
SELECT id, tenant_id, queue, type, target, payload, payload_ref, origin, schedule_id, schedule_name, scheduled_for, run_at,
  priority, 'cancelled', attempt, max_attempts, retry, timeout_seconds, labels, fair_key, lease_owner, fence, traceparent, error, :reason,
  created_at, started_at, coalesce(:now::timestamptz, now())
FROM gone
RETURNING id, schedule_id;

-- name: task_cancel_running
-- Tasks that run are asked to stop.
UPDATE tasks SET cancel_requested = true
WHERE id = ANY(:ids::uuid[]) AND tenant_id = :tenant_id AND state = 'running' RETURNING id;

-- name: task_reschedule
-- Move a task that has not started to another time.
UPDATE tasks SET run_at = :run_at,
  state = CASE WHEN :run_at::timestamptz > coalesce(:now::timestamptz, now()) THEN 'scheduled' ELSE 'ready' END
WHERE id = :id AND tenant_id = :tenant_id AND state IN ('scheduled', 'ready');

-- name: task_find
-- Tasks by id, live or finished.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  NULL::text AS result, error, created_at, started_at, NULL::timestamptz AS finished_at, lease_owner AS worker, lease_until,
  fence, cancel_requested, traceparent, NULL::text AS outcome, NULL::text AS reason
FROM tasks WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[])
UNION ALL
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name, scheduled_for, progress_fraction, progress_message, result, error,
  created_at,
  started_at, finished_at, worker, NULL, fence, false, traceparent, outcome, reason
FROM task_history WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- name: task_list
-- Live tasks of a tenant between two ids, newest first. Pairs, and the order by both, leave only the index of the tenant:
-- by ids alone it would read through the tasks of all the others.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  NULL::text AS result, error, created_at, started_at, NULL::timestamptz AS finished_at, lease_owner AS worker, lease_until,
  fence, cancel_requested, traceparent, NULL::text AS outcome, NULL::text AS reason
FROM tasks WHERE (tenant_id, id) < (:tenant_id, :before) AND (tenant_id, id) >= (:tenant_id, :floor)
  AND (:state::text IS NULL OR (state = :state) IS TRUE) AND (:queue::text IS NULL OR (queue = :queue) IS TRUE)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY tenant_id DESC, id DESC LIMIT :limit;

-- name: task_list_of_schedule
-- Live tasks of a schedule, newest first.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  NULL::text AS result, error, created_at, started_at, NULL::timestamptz AS finished_at, lease_owner AS worker, lease_until,
  fence, cancel_requested, traceparent, NULL::text AS outcome, NULL::text AS reason
FROM tasks WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND id < :before
  AND (:state::text IS NULL OR state = :state) AND (:queue::text IS NULL OR queue = :queue)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY id DESC LIMIT :limit;

-- name: task_list_floor
-- How far down a list may look before it answers with what it has.
SELECT id FROM tasks WHERE (tenant_id, id) < (:tenant_id, :before) AND tenant_id >= :tenant_id
ORDER BY tenant_id DESC, id DESC OFFSET :scan LIMIT 1;

-- name: task_list_past
-- Finished tasks between two ids, newest first.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  result, error,
  created_at, started_at, finished_at, worker, NULL::timestamptz AS lease_until, fence, false AS cancel_requested, traceparent,
  outcome, reason
FROM task_history WHERE (tenant_id, id) < (:tenant_id, :before) AND (tenant_id, id) >= (:tenant_id, :floor)
  AND (:state::text IS NULL OR (state = :state) IS TRUE) AND (:queue::text IS NULL OR (queue = :queue) IS TRUE)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY tenant_id DESC, id DESC LIMIT :limit;

-- name: task_list_past_of_schedule
-- Finished tasks of a schedule, newest first.
SELECT id, tenant_id, type, queue, target, payload, payload_ref, state, priority, run_at, attempt, max_attempts, retry,
  timeout_seconds, labels, fair_key, origin, schedule_id, schedule_name AS schedule, scheduled_for, progress_fraction, progress_message,
  result, error,
  created_at, started_at, finished_at, worker, NULL::timestamptz AS lease_until, fence, false AS cancel_requested, traceparent,
  outcome, reason
FROM task_history WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND id < :before
  AND (:state::text IS NULL OR state = :state) AND (:queue::text IS NULL OR queue = :queue)
  AND (:type::text IS NULL OR type = :type)
  AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
ORDER BY id DESC LIMIT :limit;

-- name: task_list_past_floor
-- How far down a list of finished tasks may look before it answers with what it has.
SELECT id FROM task_history WHERE (tenant_id, id) < (:tenant_id, :before) AND tenant_id >= :tenant_id
ORDER BY tenant_id DESC, id DESC OFFSET :scan LIMIT 1;

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
WHERE schedule_id = :schedule_id AND (tenant_id = :tenant_id) IS TRUE AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at
UNION
SELECT scheduled_for FROM task_history
WHERE schedule_id = :schedule_id AND (tenant_id = :tenant_id) IS TRUE AND origin = 'backfill'
  AND scheduled_for >= :from_at AND scheduled_for < :to_at;

-- name: task_ready_count
-- How many tasks of a tenant are ready, found by hopping from queue to queue.
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
  WHERE q.queue IS NOT NULL LIMIT :limit
) AS counted;

-- name: task_depths
-- Live tasks of a tenant, or of all, by queue and state.
SELECT queue, state, count(*) AS count FROM tasks
WHERE :tenant_id::uuid IS NULL OR tenant_id = :tenant_id
GROUP BY queue, state ORDER BY queue, state;

-- name: task_key_prune
-- Forget idempotency keys past their time.
DELETE FROM task_keys WHERE (tenant_id, key) IN (
  SELECT tenant_id, key FROM task_keys WHERE expires_at < coalesce(:now::timestamptz, now())
  ORDER BY expires_at LIMIT :limit);
