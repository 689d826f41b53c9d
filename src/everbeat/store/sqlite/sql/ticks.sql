-- Differs from postgres: a firing is several statements in one immediate transaction with a temporary table, because
-- SQLite has no data-modifying common table expressions. No other writer can interfere.

-- fragment: tick_columns
-- All columns of the table.
-- returns: schedule_id uuid, scheduled_for time, tenant_id cached_uuid, task_id uuid, fired_at time, node uuid
-- returns: until time
schedule_id, scheduled_for, tenant_id, outcome, reason, task_id, fired_at, node, epoch, until, count

-- name: tick_fire_table
-- The batch that is being fired. `state` is the state of the new task; NULL: the tick is skipped for the reason in `reason`.
CREATE TEMP TABLE firing (
  schedule_id BLOB PRIMARY KEY, partition INTEGER, epoch INTEGER, revision INTEGER, expected INTEGER, fires INTEGER,
  task_id BLOB, state TEXT, reason TEXT, queue TEXT, type TEXT, priority INTEGER, is_new INTEGER);

-- name: tick_fire_input
-- Insert one firing of the batch.
INSERT INTO temp.firing (schedule_id, partition, epoch, revision, expected, fires, task_id) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: tick_fire_guard
-- Delete firings that are no longer valid: check the epoch and lease of the owner, then the revision and the next tick.
DELETE FROM temp.firing WHERE NOT EXISTS (
  SELECT 1 FROM schedules AS s CROSS JOIN partitions AS p
  WHERE s.id = firing.schedule_id AND s.status = 'active' AND s.revision = firing.revision
    AND s.next_tick_at = firing.expected AND s.due_at <= :now
    AND p.partition = firing.partition AND p.owner = :node AND p.epoch = firing.epoch AND p.lease_until > :now);

-- name: tick_fire_decide
-- Decide the result of each tick by the unfinished tasks of its schedule, and mark ticks that are not in the ledger yet.
UPDATE temp.firing SET
  (state, reason, queue, type, priority) = (
    SELECT CASE
      WHEN {{is_paused(s.tenant_id, s.queue, :now)}} THEN NULL
      WHEN NOT EXISTS (SELECT 1 FROM tasks AS t WHERE t.schedule_id = firing.schedule_id AND t.origin <> 'backfill') THEN 'ready'
      WHEN s.concurrency = 1 AND s.overlap NOT IN ('queue', 'cancel_previous') THEN NULL
      ELSE (
        SELECT CASE
          WHEN count(*) < s.concurrency THEN 'ready'
          -- The sum is the number of unfinished tasks from which a tick is skipped. It also limits the number of held tasks.
          WHEN s.overlap IN ('queue', 'cancel_previous') AND count(*) < s.concurrency + 1000 THEN 'held' END
        FROM tasks AS t WHERE t.schedule_id = firing.schedule_id AND t.origin <> 'backfill') END,
      iif({{is_paused(s.tenant_id, s.queue, :now)}}, 'paused', 'overlap'),
      s.queue, s.task_type, max(s.priority, coalesce((SELECT n.min_priority FROM tenants AS n WHERE n.id = s.tenant_id), 0))
    FROM schedules AS s WHERE s.id = firing.schedule_id),
  is_new = NOT EXISTS (
    SELECT 1 FROM ticks AS t WHERE t.schedule_id = firing.schedule_id AND t.scheduled_for = firing.fires)
WHERE fires IS NOT NULL;

-- name: tick_fire_ledger
-- Insert the ledger rows. Their primary key is the last check against firing twice.
INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, reason, task_id, fired_at, node, epoch)
SELECT f.schedule_id, f.fires, s.tenant_id, iif(f.state IS NULL, 'skipped', 'fired'), iif(f.state IS NULL, f.reason, NULL),
  iif(f.state IS NULL, NULL, f.task_id), :now, :node, f.epoch
FROM temp.firing AS f CROSS JOIN schedules AS s ON s.id = f.schedule_id
WHERE f.fires IS NOT NULL AND f.is_new;

-- name: tick_fire_tasks
-- Insert the tasks of the ticks that fire.
INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, schedule_id, schedule_name, scheduled_for,
  run_at, priority, state, max_attempts, retry, timeout_seconds, labels, fair_key, hooks, created_at)
SELECT f.task_id, s.tenant_id, s.partition, s.queue, s.task_type, s.target, s.payload, 'tick', s.id, s.name, f.fires, f.fires,
  f.priority, f.state, s.max_attempts, s.retry, s.timeout_seconds, s.labels, s.fair_key, s.hooks, :now
FROM temp.firing AS f CROSS JOIN schedules AS s ON s.id = f.schedule_id
WHERE f.fires IS NOT NULL AND f.is_new AND f.state IS NOT NULL;

-- name: tick_fire
-- Advance one schedule to its next tick.
UPDATE schedules SET next_tick_at = ?1, due_at = ?2, cursor_at = ?3, last_tick_at = coalesce(?4, last_tick_at),
  status = iif(?1 IS NULL, 'finished', 'active')
WHERE id = ?5 AND status = 'active';

-- name: tick_fire_result
-- The results of the batch.
-- returns: tuples
SELECT schedule_id, iif(fires IS NULL OR NOT is_new, 'no_row', coalesce(state, reason)), queue, type, priority FROM temp.firing;

-- name: tick_fire_clear
-- Clear the table for the next batch.
DELETE FROM temp.firing;

-- name: tick_skip
-- Insert a ledger row for a range of skipped ticks.
INSERT INTO ticks (schedule_id, scheduled_for, tenant_id, outcome, reason, fired_at, node, epoch, until, count)
SELECT :schedule_id, :first, s.tenant_id, 'skipped', :reason, :now, :node, :epoch, iif(:count > 1, :last, NULL), :count
FROM schedules AS s WHERE s.id = :schedule_id
ON CONFLICT DO NOTHING;

-- name: tick_list
-- Ledger rows of a schedule that overlap a window, oldest first.
-- returns: {{tick_columns}}
SELECT * FROM (
  SELECT {{tick_columns}} FROM ticks
  WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND until >= :from_at AND scheduled_for < :from_at
  UNION ALL
  SELECT * FROM (
    SELECT {{tick_columns}} FROM ticks
    WHERE schedule_id = :schedule_id AND tenant_id = :tenant_id AND scheduled_for >= :from_at AND scheduled_for < :to_at
    ORDER BY scheduled_for LIMIT :limit)
) ORDER BY scheduled_for LIMIT :limit;

-- name: tick_recent
-- The newest ledger rows since a time of each of these schedules, oldest first. Without LATERAL, the subquery finds the oldest
-- row to return.
-- returns: {{tick_columns}}
SELECT t.schedule_id, t.scheduled_for, t.tenant_id, t.outcome, t.reason, t.task_id, t.fired_at, t.node, t.epoch, t.until, t.count
FROM json_each(:ids) AS w CROSS JOIN ticks AS t
WHERE t.schedule_id = unhex(w.value) AND t.tenant_id = :tenant_id AND t.scheduled_for >= max(:from_at, coalesce((
  SELECT n.scheduled_for FROM ticks AS n WHERE n.schedule_id = unhex(w.value)
  ORDER BY n.scheduled_for DESC LIMIT 1 OFFSET :limit - 1), :from_at))
ORDER BY t.schedule_id, t.scheduled_for;

-- name: tick_totals
-- Totals of the ledger rows that begin in a window, by schedule, outcome and reason.
-- returns: schedule_id uuid
SELECT t.schedule_id, t.outcome, t.reason, sum(t.count) AS count
FROM json_each(:ids) AS w CROSS JOIN ticks AS t
WHERE t.schedule_id = unhex(w.value) AND t.tenant_id = :tenant_id AND t.scheduled_for >= :from_at
  AND t.scheduled_for < (:ends ->> w.key)
GROUP BY t.schedule_id, t.outcome, t.reason;

-- name: tick_ranges
-- Skipped ranges that cross a boundary of a window.
-- returns: {{tick_columns}}
SELECT {{t.tick_columns}} FROM json_each(:ids) AS w CROSS JOIN ticks AS t
WHERE t.schedule_id = unhex(w.value) AND t.tenant_id = :tenant_id AND t.until >= :from_at
  AND t.scheduled_for < (:ends ->> w.key)
  AND (t.scheduled_for < :from_at OR t.until >= (:ends ->> w.key));

-- name: tick_audit
-- Of each schedule, the number of ticks in the rows that begin in a window, and the largest lag. A moved tick is not one of the
-- rule.
-- returns: schedule_id uuid
SELECT unhex(w.value) AS schedule_id, coalesce(sum(t.count) FILTER (WHERE t.reason IS NOT 'zone_changed'), 0) AS recorded,
  coalesce(max(t.fired_at - t.scheduled_for) FILTER (WHERE t.outcome = 'fired'), 0) / 1000000.0 AS lag_seconds
FROM json_each(:ids) AS w LEFT JOIN ticks AS t ON t.schedule_id = unhex(w.value)
  AND t.scheduled_for >= :from_at AND t.scheduled_for < (:ends ->> w.key)
GROUP BY w.key;

-- name: tick_suspect
-- Ticks whose tasks were created recently, by the time in their ids, and that have no ledger row, more than one task, or were late.
-- returns: tenant_id cached_uuid, schedule_id uuid, scheduled_for time, fired_at time
WITH made AS (
  SELECT schedule_id, scheduled_for, count(*) AS tasks FROM (
    SELECT schedule_id, scheduled_for FROM tasks WHERE id >= :since AND origin = 'tick'
    UNION ALL
    SELECT schedule_id, scheduled_for FROM task_history WHERE id >= :since AND origin = 'tick'
  ) GROUP BY schedule_id, scheduled_for
)
SELECT s.tenant_id, m.schedule_id, s.name, s.jitter_seconds, m.scheduled_for, m.tasks, t.fired_at
FROM made AS m CROSS JOIN schedules AS s ON s.id = m.schedule_id
LEFT JOIN ticks AS t ON t.schedule_id = m.schedule_id AND t.scheduled_for = m.scheduled_for
WHERE m.tasks > 1 OR t.fired_at IS NULL
  OR t.fired_at > m.scheduled_for + {{microseconds((:late_seconds + s.jitter_seconds))}}
ORDER BY m.scheduled_for DESC LIMIT :limit;

-- name: tick_day_totals
-- Of schedules of any tenant, totals of the rows that begin in a window, by outcome and reason.
-- returns: schedule_id uuid, first_at time, last_at time
SELECT t.schedule_id, t.outcome, t.reason, sum(t.count) AS count, min(t.scheduled_for) AS first_at,
  max(t.scheduled_for) AS last_at, max(t.fired_at - t.scheduled_for) / 1000000.0 AS lag_seconds
FROM json_each(:ids) AS w CROSS JOIN ticks AS t
WHERE t.schedule_id = unhex(w.value) AND t.scheduled_for >= :from_at AND t.scheduled_for < :to_at
GROUP BY t.schedule_id, t.outcome, t.reason;

-- name: tick_day_ranges
-- Skipped ranges of schedules of any tenant that cross a boundary of a window. A range ends in the month in which it begins.
-- returns: {{tick_columns}}
SELECT {{t.tick_columns}} FROM json_each(:ids) AS w CROSS JOIN ticks AS t
WHERE t.schedule_id = unhex(w.value) AND t.until >= :from_at AND t.scheduled_for >= :month_at AND t.scheduled_for < :to_at
  AND (t.scheduled_for < :from_at OR t.until >= :to_at);

-- name: tick_day_doubled
-- The number of ticks with more than one task of each of these schedules of any tenant.
-- returns: schedule_id uuid
SELECT schedule_id, count(*) AS count FROM (
  SELECT schedule_id, scheduled_for FROM (
    SELECT schedule_id, scheduled_for FROM tasks
    WHERE schedule_id IN (SELECT unhex(value) FROM json_each(:ids)) AND origin = 'tick'
      AND scheduled_for >= :from_at AND scheduled_for < :to_at
    UNION ALL
    SELECT schedule_id, scheduled_for FROM task_history
    WHERE schedule_id IN (SELECT unhex(value) FROM json_each(:ids)) AND origin = 'tick'
      AND scheduled_for >= :from_at AND scheduled_for < :to_at
  ) GROUP BY schedule_id, scheduled_for HAVING count(*) > 1
) GROUP BY schedule_id;

-- name: tick_window_totals
-- Totals of all rows of a tenant that begin in a window, by outcome and reason. An index on the time finds the rows.
SELECT outcome, reason, sum(count) AS count FROM ticks
WHERE scheduled_for >= :from_at AND scheduled_for < :to_at AND +tenant_id = :tenant_id
GROUP BY outcome, reason;

-- name: tick_doubled
-- The number of ticks with more than one task, live or finished. There should be none.
-- returns: schedule_id uuid
SELECT schedule_id, count(*) AS count FROM (
  SELECT schedule_id, scheduled_for FROM (
    SELECT schedule_id, scheduled_for FROM tasks
    WHERE schedule_id IN (SELECT unhex(value) FROM json_each(:ids)) AND +tenant_id = :tenant_id AND origin = 'tick'
      AND scheduled_for >= :from_at AND scheduled_for < :to_at
    UNION ALL
    SELECT schedule_id, scheduled_for FROM task_history
    WHERE schedule_id IN (SELECT unhex(value) FROM json_each(:ids)) AND +tenant_id = :tenant_id AND origin = 'tick'
      AND scheduled_for >= :from_at AND scheduled_for < :to_at
  ) GROUP BY schedule_id, scheduled_for HAVING count(*) > 1
) GROUP BY schedule_id;
