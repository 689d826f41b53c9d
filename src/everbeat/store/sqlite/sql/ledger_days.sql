-- fragment: day_columns
-- All columns of the table.
-- returns: day time, schedule_id uuid, tenant_id cached_uuid, first_at time, last_at time, cursor_at time
day, schedule_id, tenant_id, expected, fired, missing, doubled, skipped_overlap, skipped_misfire, skipped_paused,
skipped_calendar, skipped_dst_gap, skipped_zone_changed, skipped_quota, skipped_ended, lag_seconds, first_at, last_at,
cursor_at

-- fragment: count_columns
-- The numbers of ticks.
expected, fired, missing, doubled, skipped_overlap, skipped_misfire, skipped_paused, skipped_calendar, skipped_dst_gap,
skipped_zone_changed, skipped_quota, skipped_ended

-- name: ledger_day_replaced
-- The rows that are about to be replaced.
-- returns: {{day_columns}}
SELECT {{d.day_columns}} FROM json_each(:ids) AS w CROSS JOIN ledger_days AS d
WHERE d.schedule_id = unhex(w.value) AND d.day = (:days ->> w.key)
  AND d.tenant_id IN (SELECT unhex(value) FROM json_each(:tenant_ids));

-- name: ledger_day_write
-- Insert or replace one row.
INSERT INTO ledger_days ({{day_columns}})
VALUES ({{:day_columns}})
ON CONFLICT (day, schedule_id) DO UPDATE SET
  expected = excluded.expected, fired = excluded.fired, missing = excluded.missing, doubled = excluded.doubled,
  skipped_overlap = excluded.skipped_overlap, skipped_misfire = excluded.skipped_misfire,
  skipped_paused = excluded.skipped_paused, skipped_calendar = excluded.skipped_calendar,
  skipped_dst_gap = excluded.skipped_dst_gap, skipped_zone_changed = excluded.skipped_zone_changed,
  skipped_quota = excluded.skipped_quota, skipped_ended = excluded.skipped_ended, lag_seconds = excluded.lag_seconds,
  first_at = excluded.first_at, last_at = excluded.last_at, cursor_at = excluded.cursor_at;

-- name: ledger_day_add
-- Add the differences to the sums of a tenant.
INSERT INTO tenant_ledger_days (tenant_id, day, {{count_columns}}, lag_seconds)
VALUES (:tenant_id, :day, {{:count_columns}}, :lag_seconds)
ON CONFLICT (tenant_id, day) DO UPDATE SET
  expected = expected + excluded.expected, fired = fired + excluded.fired, missing = missing + excluded.missing,
  doubled = doubled + excluded.doubled, skipped_overlap = skipped_overlap + excluded.skipped_overlap,
  skipped_misfire = skipped_misfire + excluded.skipped_misfire, skipped_paused = skipped_paused + excluded.skipped_paused,
  skipped_calendar = skipped_calendar + excluded.skipped_calendar,
  skipped_dst_gap = skipped_dst_gap + excluded.skipped_dst_gap,
  skipped_zone_changed = skipped_zone_changed + excluded.skipped_zone_changed,
  skipped_quota = skipped_quota + excluded.skipped_quota, skipped_ended = skipped_ended + excluded.skipped_ended,
  lag_seconds = max(lag_seconds, excluded.lag_seconds);

-- name: ledger_day_list
-- The sums of each of these schedules over some days.
-- returns: schedule_id uuid
SELECT d.schedule_id, max(d.lag_seconds) AS lag_seconds,
  sum(d.expected) AS expected, sum(d.fired) AS fired, sum(d.missing) AS missing, sum(d.doubled) AS doubled,
  sum(d.skipped_overlap) AS skipped_overlap, sum(d.skipped_misfire) AS skipped_misfire,
  sum(d.skipped_paused) AS skipped_paused, sum(d.skipped_calendar) AS skipped_calendar,
  sum(d.skipped_dst_gap) AS skipped_dst_gap, sum(d.skipped_zone_changed) AS skipped_zone_changed,
  sum(d.skipped_quota) AS skipped_quota, sum(d.skipped_ended) AS skipped_ended
FROM json_each(:ids) AS w CROSS JOIN json_each(:days) AS a CROSS JOIN ledger_days AS d
WHERE d.schedule_id = unhex(w.value) AND d.day = a.value AND d.tenant_id = :tenant_id
GROUP BY d.schedule_id;

-- name: ledger_day_find
-- The rows of some schedules of any tenant on a day.
-- returns: {{day_columns}}
SELECT {{day_columns}} FROM ledger_days WHERE day = :day AND schedule_id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: ledger_day_total
-- The sums of a tenant over some days.
SELECT coalesce(max(lag_seconds), 0) AS lag_seconds,
  coalesce(sum(expected), 0) AS expected, coalesce(sum(fired), 0) AS fired, coalesce(sum(missing), 0) AS missing,
  coalesce(sum(doubled), 0) AS doubled, coalesce(sum(skipped_overlap), 0) AS skipped_overlap,
  coalesce(sum(skipped_misfire), 0) AS skipped_misfire, coalesce(sum(skipped_paused), 0) AS skipped_paused,
  coalesce(sum(skipped_calendar), 0) AS skipped_calendar, coalesce(sum(skipped_dst_gap), 0) AS skipped_dst_gap,
  coalesce(sum(skipped_zone_changed), 0) AS skipped_zone_changed, coalesce(sum(skipped_quota), 0) AS skipped_quota,
  coalesce(sum(skipped_ended), 0) AS skipped_ended
FROM tenant_ledger_days WHERE tenant_id = :tenant_id AND day >= :from_at AND day < :to_at;

-- name: ledger_day_incomplete
-- Rows of days that were not complete, of schedules whose cursor has moved since.
-- returns: schedule_id uuid, day time
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
