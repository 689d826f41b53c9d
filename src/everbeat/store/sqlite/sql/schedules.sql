-- fragment: schedule_columns
-- All columns of the table.
-- returns: id uuid, tenant_id cached_uuid, anchor time, starts_at time, ends_at time, enabled bool, cursor_at time, rule_at time
-- returns: next_tick_at time, due_at time, last_tick_at time, moved_tick_at time, created_at time, updated_at time
id, tenant_id, name, description, partition, trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars,
starts_at, ends_at, target, target_kind, queue, task_type, fair_key, hooks, payload, overlap, max_concurrent, concurrency, catch_up,
misfire_grace_seconds, jitter_seconds, priority, max_attempts, retry, timeout_seconds, labels, enabled, status, revision,
cursor_at, rule_at, next_tick_at, due_at, last_tick_at, moved_tick_at, fault, note, created_at, updated_at

-- fragment: schedule_edited_columns
-- The columns that an edit writes.
name, description, trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at, target,
target_kind, queue, task_type, fair_key, hooks, payload, overlap, max_concurrent, concurrency, catch_up, misfire_grace_seconds,
jitter_seconds, priority, max_attempts, retry, timeout_seconds, labels, enabled, status, revision, cursor_at, rule_at,
next_tick_at, due_at, last_tick_at, moved_tick_at, fault, note, updated_at

-- fragment: due_columns
-- The columns that the ticker needs.
-- returns: id uuid, tenant_id cached_uuid, cursor_at time, next_tick_at time, due_at time, anchor time, starts_at time, ends_at time
-- returns: moved_tick_at time
id, tenant_id, partition, revision, cursor_at, next_tick_at, due_at, catch_up, misfire_grace_seconds, jitter_seconds,
trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at, moved_tick_at

-- name: schedule_find
-- The tenant's schedules with these names or ids.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules WHERE tenant_id = :tenant_id AND name IN (SELECT value FROM json_each(:names))
UNION ALL
SELECT {{schedule_columns}} FROM schedules WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND tenant_id = :tenant_id
  AND name NOT IN (SELECT value FROM json_each(:names));

-- name: schedule_insert
-- Insert a row. If its name is taken, it is not inserted.
-- Differs from postgres: one row at a time, because a repeated execution needs no round trip.
INSERT INTO schedules ({{schedule_columns}})
VALUES ({{:schedule_columns}})
ON CONFLICT (tenant_id, name) DO NOTHING;

-- name: schedule_replace
-- Replace a row, only if its revision, status and next tick are as expected.
UPDATE schedules SET ({{schedule_edited_columns}})
  = ({{:schedule_edited_columns}})
WHERE id = :id AND tenant_id = :tenant_id AND revision = :expected_revision AND status = :expected_status
  AND next_tick_at IS :expected_next_tick_at;

-- fragment: schedule_matches
-- The conditions of a filter.
(:status IS NULL OR status = :status)
  AND (:name_prefix IS NULL OR substr(name, 1, length(:name_prefix)) = :name_prefix)
  AND (:queue IS NULL OR queue = :queue)
  AND (:type IS NULL OR task_type = :type)
  AND (:target IS NULL OR target_kind = :target)
  AND (:zones IS NULL OR timezone IN (SELECT value FROM json_each(:zones)))

-- name: schedule_list
-- The tenant's schedules that match a filter, in order of name, after a given name.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules
WHERE tenant_id = :tenant_id AND (:after_name IS NULL OR name > :after_name)
  AND {{schedule_matches}}
ORDER BY name LIMIT :limit;

-- name: schedule_delete
-- Delete schedules. Their ledger rows are kept.
DELETE FROM schedules WHERE tenant_id = :tenant_id AND id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: schedule_match_count
-- The number of the tenant's schedules that match a filter, up to a limit.
SELECT count(*) AS count FROM (
  SELECT 1 FROM schedules WHERE tenant_id = :tenant_id
    AND {{schedule_matches}}
  LIMIT :limit);

-- name: schedule_search
-- The names that contain a text, in order of name, among the first ones of the tenant. It reads the index on the names only.
SELECT name FROM (SELECT name FROM schedules WHERE tenant_id = :tenant_id ORDER BY name LIMIT :scan)
WHERE instr(lower(name), lower(:text)) > 0 ORDER BY name LIMIT :limit;

-- name: schedule_count
-- The number of the tenant's schedules by status.
SELECT status, count(*) AS count FROM schedules WHERE tenant_id = :tenant_id GROUP BY status;

-- name: schedule_due
-- Schedules of one partition that are due soon, the earliest first.
-- Differs from postgres: one partition at a time, because SQLite has no lateral joins and a call needs no round trip.
-- returns: {{due_columns}}
SELECT {{due_columns}}
FROM schedules
WHERE partition = :partition AND status = 'active' AND due_at <= :now + :horizon_seconds * 1000000
ORDER BY due_at LIMIT :limit;

-- name: schedule_fault
-- Pause a schedule that has a fault, and store the reason.
UPDATE schedules SET status = 'paused', fault = :fault, next_tick_at = NULL, due_at = NULL, updated_at = :now
WHERE id = :id AND status = 'active';

-- name: schedule_overdue
-- Active schedules with a tick that should have fired some time ago, the most overdue first.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules
WHERE status = 'active' AND due_at < :now - :late_seconds * 1000000
  AND partition IN (SELECT partition FROM partitions)
ORDER BY due_at LIMIT :limit;

-- name: schedule_is_many
-- Whether a tenant has more than this number of schedules.
-- returns: is_many bool
SELECT count(*) > :than AS is_many FROM (SELECT 1 FROM schedules WHERE tenant_id = :tenant_id LIMIT :than + 1);

-- name: schedule_audit
-- The rules and cursors of schedules of all tenants in order of id. What the ticker writes to plan its work is not among them.
-- returns: id uuid, tenant_id cached_uuid, anchor time, starts_at time, ends_at time, cursor_at time, rule_at time
-- returns: created_at time, moved_tick_at time
SELECT id, tenant_id, name, status, trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at,
  cursor_at, rule_at, created_at, moved_tick_at, jitter_seconds, fault
FROM schedules WHERE id > :after ORDER BY id LIMIT :limit;

-- name: schedule_audit_find
-- The same fields of schedules with these ids.
-- returns: id uuid, tenant_id cached_uuid, anchor time, starts_at time, ends_at time, cursor_at time, rule_at time
-- returns: created_at time, moved_tick_at time
SELECT id, tenant_id, name, status, trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at,
  cursor_at, rule_at, created_at, moved_tick_at, jitter_seconds, fault
FROM schedules WHERE id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: schedule_faulty
-- Schedules that were paused because of a fault.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules WHERE fault IS NOT NULL AND (:tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY id LIMIT :limit;

-- name: schedule_past_rules
-- The former rules of these schedules.
-- returns: schedule_id uuid, since time, until time
SELECT p.schedule_id, p.rule, p.since, p.until FROM schedules AS s CROSS JOIN past_rules AS p ON p.schedule_id = s.id
WHERE s.id IN (SELECT unhex(value) FROM json_each(:ids)) AND s.tenant_id = :tenant_id ORDER BY p.schedule_id, p.until;

-- name: schedule_past_rule_insert
-- Store a rule that an edit has replaced.
INSERT INTO past_rules (schedule_id, since, until, rule) VALUES (:schedule_id, :since, :until, :rule)
ON CONFLICT DO NOTHING;

-- name: schedule_using_calendar
-- Schedules whose rule may refer to a calendar. This is a text search; the caller checks the rule.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules WHERE tenant_id = :tenant_id AND calendars IS NOT NULL AND instr(calendars, :name) > 0;

-- name: schedule_page_end
-- The id of the last of the next schedules of all tenants, in order of id.
-- returns: id uuid
SELECT id FROM (SELECT id FROM schedules WHERE id > :after ORDER BY id LIMIT :limit) AS page ORDER BY id DESC LIMIT 1;

-- name: schedule_zones
-- The zones of the active schedules in a range of ids. Triggers that may contain a zone of their own are returned with their text.
SELECT DISTINCT timezone, trigger_kind, CASE WHEN trigger_text LIKE '%TZ%=%' THEN trigger_text END AS trigger_text
FROM schedules WHERE id > :after AND id <= :until AND status = 'active' AND trigger_kind IN ('cron', 'rrule');

-- name: schedule_in_zones
-- Active schedules of all tenants in a range of ids whose rule may depend on one of these zones; the caller checks the rule.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules
WHERE status = 'active' AND trigger_kind IN ('cron', 'rrule') AND (timezone IN (SELECT value FROM json_each(:zones)) OR trigger_text LIKE '%TZ%=%')
  AND id > :after AND id <= :until
ORDER BY id;
