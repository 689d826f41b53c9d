-- fragment: day_columns
-- All columns of the table.
day, schedule_id, tenant_id, expected, fired, missing, doubled, skipped_overlap, skipped_misfire, skipped_paused,
skipped_calendar, skipped_dst_gap, skipped_zone_changed, skipped_quota, skipped_ended, lag_seconds, first_at, last_at,
cursor_at

-- fragment: count_columns
-- The numbers of ticks.
expected, fired, missing, doubled, skipped_overlap, skipped_misfire, skipped_paused, skipped_calendar, skipped_dst_gap,
skipped_zone_changed, skipped_quota, skipped_ended

-- name: ledger_day_lock
-- One transaction at a time changes the roll-up, because the sums depend on the rows that it replaces.
SELECT pg_advisory_xact_lock(hashtext('everbeat_ledger_days'));

-- name: ledger_day_replaced
-- The rows that are about to be replaced.
SELECT {{day_columns}} FROM ledger_days WHERE tenant_id = ANY(:tenant_ids::uuid[])
  AND (day, schedule_id) IN (SELECT * FROM unnest(:days::timestamptz[], :ids::uuid[]));

-- name: ledger_day_write
-- Insert or replace rows from one JSON array.
INSERT INTO ledger_days ({{day_columns}})
SELECT {{day_columns}} FROM json_populate_recordset(NULL::ledger_days, :rows::json) AS r
ON CONFLICT (day, schedule_id) DO UPDATE SET
  expected = excluded.expected, fired = excluded.fired, missing = excluded.missing, doubled = excluded.doubled,
  skipped_overlap = excluded.skipped_overlap, skipped_misfire = excluded.skipped_misfire,
  skipped_paused = excluded.skipped_paused, skipped_calendar = excluded.skipped_calendar,
  skipped_dst_gap = excluded.skipped_dst_gap, skipped_zone_changed = excluded.skipped_zone_changed,
  skipped_quota = excluded.skipped_quota, skipped_ended = excluded.skipped_ended, lag_seconds = excluded.lag_seconds,
  first_at = excluded.first_at, last_at = excluded.last_at, cursor_at = excluded.cursor_at;

-- name: ledger_day_add
-- Add the differences to the sums of the tenants, from one JSON array.
INSERT INTO tenant_ledger_days AS t (tenant_id, day, {{count_columns}}, lag_seconds)
SELECT tenant_id, day, {{count_columns}}, lag_seconds FROM json_populate_recordset(NULL::tenant_ledger_days, :rows::json) AS r
ON CONFLICT (tenant_id, day) DO UPDATE SET
  expected = t.expected + excluded.expected, fired = t.fired + excluded.fired, missing = t.missing + excluded.missing,
  doubled = t.doubled + excluded.doubled, skipped_overlap = t.skipped_overlap + excluded.skipped_overlap,
  skipped_misfire = t.skipped_misfire + excluded.skipped_misfire,
  skipped_paused = t.skipped_paused + excluded.skipped_paused,
  skipped_calendar = t.skipped_calendar + excluded.skipped_calendar,
  skipped_dst_gap = t.skipped_dst_gap + excluded.skipped_dst_gap,
  skipped_zone_changed = t.skipped_zone_changed + excluded.skipped_zone_changed,
  skipped_quota = t.skipped_quota + excluded.skipped_quota, skipped_ended = t.skipped_ended + excluded.skipped_ended,
  lag_seconds = greatest(t.lag_seconds, excluded.lag_seconds);

-- name: ledger_day_list
-- The sums of each of these schedules over some days.
SELECT schedule_id, max(lag_seconds) AS lag_seconds,
  sum(expected) AS expected, sum(fired) AS fired, sum(missing) AS missing, sum(doubled) AS doubled,
  sum(skipped_overlap) AS skipped_overlap, sum(skipped_misfire) AS skipped_misfire, sum(skipped_paused) AS skipped_paused,
  sum(skipped_calendar) AS skipped_calendar, sum(skipped_dst_gap) AS skipped_dst_gap,
  sum(skipped_zone_changed) AS skipped_zone_changed, sum(skipped_quota) AS skipped_quota,
  sum(skipped_ended) AS skipped_ended
FROM ledger_days WHERE schedule_id = ANY(:ids::uuid[]) AND tenant_id = :tenant_id
  AND day = ANY(:days::timestamptz[])
GROUP BY schedule_id;

-- name: ledger_day_find
-- The rows of some schedules of any tenant on a day.
SELECT {{day_columns}} FROM ledger_days WHERE day = :day AND schedule_id = ANY(:ids::uuid[]);

-- name: ledger_day_total
-- The sums of a tenant over some days.
SELECT coalesce(max(lag_seconds), 0) AS lag_seconds,
  coalesce(sum(expected), 0)::bigint AS expected, coalesce(sum(fired), 0)::bigint AS fired,
  coalesce(sum(missing), 0)::bigint AS missing, coalesce(sum(doubled), 0)::bigint AS doubled,
  coalesce(sum(skipped_overlap), 0)::bigint AS skipped_overlap,
  coalesce(sum(skipped_misfire), 0)::bigint AS skipped_misfire, coalesce(sum(skipped_paused), 0)::bigint AS skipped_paused,
  coalesce(sum(skipped_calendar), 0)::bigint AS skipped_calendar,
  coalesce(sum(skipped_dst_gap), 0)::bigint AS skipped_dst_gap,
  coalesce(sum(skipped_zone_changed), 0)::bigint AS skipped_zone_changed,
  coalesce(sum(skipped_quota), 0)::bigint AS skipped_quota, coalesce(sum(skipped_ended), 0)::bigint AS skipped_ended
FROM tenant_ledger_days WHERE tenant_id = :tenant_id AND day >= :from_at AND day < :to_at;

-- name: ledger_day_incomplete
-- Rows of days that were not complete, of schedules whose cursor has moved since.
SELECT d.schedule_id, d.day FROM ledger_days AS d JOIN schedules AS s ON s.id = d.schedule_id
WHERE d.cursor_at IS NOT NULL AND s.cursor_at > d.cursor_at
ORDER BY d.day, d.schedule_id LIMIT :limit;

-- name: ledger_day_prune
-- Delete a limited number of old rows.
DELETE FROM ledger_days WHERE (day, schedule_id) IN (
  SELECT day, schedule_id FROM ledger_days WHERE day < :before_at ORDER BY day LIMIT :limit);

-- name: ledger_day_prune_tenants
-- Delete a limited number of old sums.
DELETE FROM tenant_ledger_days WHERE (tenant_id, day) IN (
  SELECT tenant_id, day FROM tenant_ledger_days WHERE day < :before_at LIMIT :limit);
