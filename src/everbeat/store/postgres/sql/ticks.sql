-- fragment: tick_columns
-- All columns of the table.
schedule_id, scheduled_for, tenant_id, outcome, reason, task_id, fired_at, node, epoch, until, count

-- fragment: may_fire
-- Whether schedule s is at the position that firing f expects, and is due.
s.status = 'active' AND s.revision = f.revision AND s.next_tick_at = f.expected AND s.due_at <= (SELECT at FROM moment)

-- name: tick_fire
-- Fire a batch in one statement: advance the schedules, insert ledger rows and tasks. Three checks prevent a tick from firing
-- twice: the epoch and lease of the owner, the compare-and-set on next_tick_at and revision, and the primary key of the ledger.
-- The statement never waits for a locked row. It returns the schedules that it skipped because they were locked.
WITH moment AS (SELECT coalesce(:now::timestamptz, now()) AS at),
firing AS (
  SELECT f.* FROM unnest(
    :ids::uuid[], :partitions::smallint[], :epochs::bigint[], :revisions::integer[], :expected::timestamptz[],
    :fires::timestamptz[], :task_ids::uuid[], :cursors::timestamptz[], :next_ticks::timestamptz[], :dues::timestamptz[]
  ) AS f(schedule_id, partition, epoch, revision, expected, fires, task_id, cursor_at, next_tick_at, due_at)
  -- IS TRUE keeps the subplans of this statement hashed. The planner cannot know the lengths of the arrays, and would use
  -- nested loops.
  WHERE ((f.partition, f.epoch) IN (
    SELECT p.partition, p.epoch FROM partitions AS p
    WHERE p.owner = :node AND p.lease_until > (SELECT at FROM moment))) IS TRUE
),
locked AS MATERIALIZED (
  -- A row that another transaction has locked is skipped, so that it does not delay the others.
  SELECT f.* FROM firing AS f JOIN schedules AS s ON s.id = f.schedule_id
  -- Here IS TRUE leaves the planner only the primary key. A plan made while the table was small would scan all due schedules
  -- for each row of the batch.
  WHERE ({{may_fire}}) IS TRUE
  FOR NO KEY UPDATE OF s SKIP LOCKED
),
advanced AS (
  UPDATE schedules AS s SET next_tick_at = f.next_tick_at, due_at = f.due_at, cursor_at = f.cursor_at,
    last_tick_at = coalesce(f.fires, s.last_tick_at),
    status = CASE WHEN f.next_tick_at IS NULL THEN 'finished' ELSE 'active' END
  FROM locked AS f
  WHERE s.id = f.schedule_id AND ({{may_fire}}) IS TRUE
  RETURNING s.id, s.tenant_id, s.name, s.partition, s.queue, s.task_type, s.target, s.payload, s.priority, s.max_attempts,
    s.retry, s.timeout_seconds, s.labels, s.fair_key, s.hooks, s.concurrency, f.fires, f.task_id, f.epoch,
    -- The number of unfinished tasks from which a tick is skipped. It also limits the number of held tasks.
    s.concurrency + CASE WHEN s.overlap IN ('queue', 'cancel_previous') THEN 1000 ELSE 0 END AS bound
),
decided AS (
  SELECT a.*, l.live >= a.concurrency AND l.live < a.bound AS is_held,
    CASE WHEN {{is_paused(a.tenant_id, a.queue, (SELECT at FROM moment))}} THEN 'paused'
      WHEN l.live >= a.bound THEN 'overlap' END AS skip_reason
  FROM advanced AS a CROSS JOIN LATERAL (
    SELECT count(*) AS live FROM (
      SELECT 1 FROM tasks AS t WHERE t.schedule_id = a.id AND t.origin <> 'backfill' LIMIT a.bound
    ) AS unfinished
  ) AS l
  WHERE a.fires IS NOT NULL
),
ledger AS (
  INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, reason, task_id, fired_at, node, epoch)
  SELECT id, fires, tenant_id, CASE WHEN skip_reason IS NULL THEN 'fired' ELSE 'skipped' END,
    skip_reason, CASE WHEN skip_reason IS NULL THEN task_id END,
    coalesce(:now::timestamptz, greatest(clock_timestamp(), now())), :node, epoch
  FROM decided
  ON CONFLICT DO NOTHING
  RETURNING schedule_id, outcome, reason, task_id, fired_at
),
inserted AS (
  INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, schedule_id, schedule_name,
    scheduled_for, run_at, priority, state, max_attempts, retry, timeout_seconds, labels, fair_key, hooks, created_at)
  SELECT d.task_id, d.tenant_id, d.partition, d.queue, d.task_type, d.target, d.payload, 'tick', d.id, d.name, d.fires,
    d.fires, greatest(d.priority, (SELECT n.min_priority FROM tenants AS n WHERE n.id = d.tenant_id)),
    CASE WHEN d.is_held THEN 'held' ELSE 'ready' END, d.max_attempts, d.retry, d.timeout_seconds,
    d.labels, d.fair_key, d.hooks, coalesce(:now::timestamptz, clock_timestamp())
  FROM decided AS d
  WHERE (d.task_id IN (SELECT l.task_id FROM ledger AS l WHERE l.task_id IS NOT NULL)) IS TRUE
  RETURNING schedule_id, queue, type, priority, state
),
skipped AS (
  INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, reason, fired_at, node, epoch, until, count)
  SELECT k.schedule_id, k.first, k.tenant_id, 'skipped', k.reason, coalesce(:now::timestamptz, clock_timestamp()), :node,
    k.epoch, CASE WHEN k.count > 1 THEN k.last END, k.count
  FROM unnest(:skip_ids::uuid[], :skip_tenants::uuid[], :skip_epochs::bigint[], :skip_firsts::timestamptz[],
    :skip_lasts::timestamptz[], :skip_counts::bigint[], :skip_reasons::text[])
    AS k(schedule_id, tenant_id, epoch, first, last, count, reason)
  WHERE (k.schedule_id IN (SELECT a.id FROM advanced AS a)) IS TRUE
  ON CONFLICT DO NOTHING
)
SELECT m.at AS moment, NULL::uuid AS id, NULL::text AS outcome, NULL::text AS reason, NULL::timestamptz AS fired_at,
  NULL::text AS queue, NULL::text AS type, NULL::integer AS priority, NULL::text AS state, NULL::uuid[] AS schedule_ids
FROM moment AS m
UNION ALL
SELECT NULL, l.schedule_id, l.outcome, l.reason, l.fired_at, NULL, NULL, NULL, NULL, NULL FROM ledger AS l
UNION ALL
-- Grouped, because most tasks of a batch differ only in their schedule, and reading few rows is faster.
SELECT NULL, NULL, NULL, NULL, NULL, q.queue, q.type, q.priority, q.state, array_agg(q.schedule_id)
FROM inserted AS q GROUP BY q.queue, q.type, q.priority, q.state
UNION ALL
SELECT NULL, a.id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM advanced AS a
WHERE (a.id IN (SELECT l.schedule_id FROM ledger AS l)) IS NOT TRUE
UNION ALL
SELECT NULL, f.schedule_id, 'locked', NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM firing AS f JOIN schedules AS s ON s.id = f.schedule_id
-- The first condition is evaluated once: nothing is read if all have fired.
WHERE (SELECT count(*) FROM advanced) < (SELECT count(*) FROM firing)
  AND ({{may_fire}} AND f.schedule_id NOT IN (SELECT a.id FROM advanced AS a)) IS TRUE;

-- name: tick_skip
-- Insert ledger rows for ticks that were skipped by an edit, a pause or a resume.
INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, reason, fired_at, until, count)
SELECT k.schedule_id, k.first, k.tenant_id, 'skipped', k.reason, coalesce(:now::timestamptz, clock_timestamp()),
  CASE WHEN k.count > 1 THEN k.last END, k.count
FROM unnest(:skip_ids::uuid[], :skip_tenants::uuid[], :skip_firsts::timestamptz[], :skip_lasts::timestamptz[],
  :skip_counts::bigint[], :skip_reasons::text[]) AS k(schedule_id, tenant_id, first, last, count, reason)
ON CONFLICT DO NOTHING;

-- name: tick_list
-- Ledger rows of a schedule that overlap a window, oldest first.
SELECT * FROM (
  (SELECT {{tick_columns}} FROM ticks WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND until >= :from_at
    AND scheduled_for < :from_at)
  UNION ALL
  (SELECT {{tick_columns}} FROM ticks WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND scheduled_for >= :from_at
    AND scheduled_for < :to_at
   ORDER BY scheduled_for LIMIT :limit)
) AS touching ORDER BY scheduled_for LIMIT :limit;

-- name: tick_recent
-- The newest ledger rows since a time of each of these schedules, oldest first.
SELECT {{tick_columns}} FROM unnest(:ids::uuid[]) AS w(id) CROSS JOIN LATERAL (
  SELECT * FROM ticks AS t
  WHERE t.schedule_id = w.id AND t.tenant_id = :tenant_id AND t.scheduled_for >= :from_at
  ORDER BY t.scheduled_for DESC LIMIT :limit
) AS newest ORDER BY schedule_id, scheduled_for;

-- name: tick_totals
-- Totals of the ledger rows that begin in a window, by schedule, outcome and reason.
SELECT t.schedule_id, t.outcome, t.reason, sum(t.count)::bigint AS count
FROM unnest(:ids::uuid[], :ends::timestamptz[]) AS w(id, end_at)
CROSS JOIN LATERAL (
  SELECT * FROM ticks
  WHERE schedule_id = w.id AND tenant_id = :tenant_id AND scheduled_for >= :from_at AND scheduled_for < w.end_at OFFSET 0
) AS t
GROUP BY t.schedule_id, t.outcome, t.reason;

-- name: tick_ranges
-- Skipped ranges that cross a boundary of a window.
SELECT t.* FROM unnest(:ids::uuid[], :ends::timestamptz[]) AS w(id, end_at)
CROSS JOIN LATERAL (
  SELECT {{tick_columns}} FROM ticks
  WHERE schedule_id = w.id AND tenant_id = :tenant_id AND until >= :from_at AND scheduled_for < w.end_at
    AND (scheduled_for < :from_at OR until >= w.end_at) OFFSET 0
) AS t;

-- name: tick_audit
-- Of each schedule, the number of ticks in the rows that begin in a window, and the largest lag. A moved tick is not one of the
-- rule.
SELECT w.id AS schedule_id, t.recorded, t.lag_seconds
FROM unnest(:ids::uuid[], :ends::timestamptz[]) AS w(id, end_at)
CROSS JOIN LATERAL (
  SELECT coalesce(sum(count) FILTER (WHERE reason IS DISTINCT FROM 'zone_changed'), 0)::bigint AS recorded,
    coalesce(max(extract(epoch FROM fired_at - scheduled_for)) FILTER (WHERE outcome = 'fired'), 0)::double precision AS lag_seconds
  FROM ticks WHERE schedule_id = w.id AND scheduled_for >= :from_at AND scheduled_for < w.end_at
) AS t;

-- name: tick_suspect
-- Ticks whose tasks were created recently, by the time in their ids, and that have no ledger row, more than one task, or were late.
WITH made AS (
  SELECT schedule_id, scheduled_for, count(*) AS tasks FROM (
    SELECT schedule_id, scheduled_for FROM tasks WHERE id >= :since AND origin = 'tick'
    UNION ALL
    SELECT schedule_id, scheduled_for FROM task_history WHERE id >= :since AND origin = 'tick'
  ) AS recent GROUP BY schedule_id, scheduled_for
)
SELECT s.tenant_id, m.schedule_id, s.name, s.jitter_seconds, m.scheduled_for, m.tasks, t.fired_at
FROM made AS m
LEFT JOIN ticks AS t ON t.schedule_id = m.schedule_id AND t.scheduled_for = m.scheduled_for
JOIN schedules AS s ON s.id = m.schedule_id
WHERE m.tasks > 1 OR t.fired_at IS NULL
  OR t.fired_at > m.scheduled_for + make_interval(secs => :late_seconds + s.jitter_seconds)
ORDER BY m.scheduled_for DESC LIMIT :limit;

-- name: tick_day_totals
-- Of schedules of any tenant, totals of the rows that begin in a window, by outcome and reason.
SELECT t.schedule_id, t.outcome, t.reason, sum(t.count)::bigint AS count, min(t.scheduled_for) AS first_at,
  max(t.scheduled_for) AS last_at, coalesce(max(extract(epoch FROM t.fired_at - t.scheduled_for)), 0)::double precision AS lag_seconds
FROM unnest(:ids::uuid[]) AS w(id)
CROSS JOIN LATERAL (
  SELECT * FROM ticks WHERE schedule_id = w.id AND scheduled_for >= :from_at AND scheduled_for < :to_at OFFSET 0
) AS t
GROUP BY t.schedule_id, t.outcome, t.reason;

-- name: tick_day_ranges
-- Skipped ranges of schedules of any tenant that cross a boundary of a window. A range ends in the month in which it begins.
SELECT t.* FROM unnest(:ids::uuid[]) AS w(id)
CROSS JOIN LATERAL (
  SELECT {{tick_columns}} FROM ticks
  WHERE schedule_id = w.id AND until >= :from_at AND scheduled_for >= :month_at AND scheduled_for < :to_at
    AND (scheduled_for < :from_at OR until >= :to_at) OFFSET 0
) AS t;

-- name: tick_day_doubled
-- The number of ticks with more than one task of each of these schedules of any tenant.
SELECT schedule_id, count(*) AS count FROM (
  SELECT schedule_id, scheduled_for FROM (
    SELECT schedule_id, scheduled_for FROM tasks
    WHERE schedule_id = ANY(:ids::uuid[]) AND origin = 'tick' AND scheduled_for >= :from_at AND scheduled_for < :to_at
    UNION ALL
    SELECT schedule_id, scheduled_for FROM task_history
    WHERE schedule_id = ANY(:ids::uuid[]) AND origin = 'tick' AND scheduled_for >= :from_at AND scheduled_for < :to_at
  ) AS made GROUP BY schedule_id, scheduled_for HAVING count(*) > 1
) AS doubled GROUP BY schedule_id;

-- name: tick_window_totals
-- Totals of all rows of a tenant that begin in a window, by outcome and reason. An index on the time finds the rows.
SELECT outcome, reason, sum(count)::bigint AS count FROM ticks
WHERE scheduled_for >= :from_at AND scheduled_for < :to_at AND tenant_id = :tenant_id
GROUP BY outcome, reason;

-- name: tick_doubled
-- The number of ticks with more than one task, live or finished. There should be none.
SELECT schedule_id, count(*) AS count FROM (
  SELECT schedule_id, scheduled_for FROM (
    SELECT schedule_id, scheduled_for FROM tasks
    WHERE schedule_id = ANY(:ids::uuid[]) AND (tenant_id = :tenant_id) IS TRUE AND origin = 'tick'
      AND scheduled_for >= :from_at AND scheduled_for < :to_at
    UNION ALL
    SELECT schedule_id, scheduled_for FROM task_history
    WHERE schedule_id = ANY(:ids::uuid[]) AND (tenant_id = :tenant_id) IS TRUE AND origin = 'tick'
      AND scheduled_for >= :from_at AND scheduled_for < :to_at
  ) AS made GROUP BY schedule_id, scheduled_for HAVING count(*) > 1
) AS doubled GROUP BY schedule_id;
