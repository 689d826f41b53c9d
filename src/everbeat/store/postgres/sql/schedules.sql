-- fragment: schedule_columns
-- All columns of the table.
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
id, tenant_id, partition, revision, cursor_at, next_tick_at, due_at, catch_up, misfire_grace_seconds, jitter_seconds,
trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at, moved_tick_at

-- name: schedule_find
-- The tenant's schedules with these names or ids.
SELECT {{schedule_columns}} FROM schedules WHERE tenant_id = :tenant_id AND name = ANY(:names::text[])
UNION ALL
SELECT {{schedule_columns}} FROM schedules WHERE id = ANY(:ids::uuid[]) AND tenant_id = :tenant_id AND name <> ALL(:names::text[]);

-- name: schedule_insert
-- Insert rows from one JSON array. Rows whose name is taken are not inserted.
INSERT INTO schedules ({{schedule_columns}})
SELECT {{schedule_columns}} FROM json_populate_recordset(NULL::schedules, :rows::json) AS r
ON CONFLICT (tenant_id, name) DO NOTHING;

-- name: schedule_replace
-- Replace rows from one JSON array. A row is replaced only if its revision, status and next tick are as expected.
UPDATE schedules AS s SET ({{schedule_edited_columns}})
  = ({{r.schedule_edited_columns}})
FROM json_populate_recordset(NULL::schedules, :rows::json) AS r
JOIN unnest(:ids::uuid[], :revisions::integer[], :next_ticks::timestamptz[], :statuses::text[])
  AS e(id, revision, next_tick_at, status) ON e.id = r.id
WHERE s.id = r.id AND s.tenant_id = r.tenant_id AND s.revision = e.revision AND s.status = e.status
  AND s.next_tick_at IS NOT DISTINCT FROM e.next_tick_at;

-- fragment: schedule_matches
-- The conditions of a filter.
(:status::text IS NULL OR status = :status)
  AND (:name_prefix::text IS NULL OR starts_with(name, :name_prefix))
  AND (:queue::text IS NULL OR queue = :queue)
  AND (:type::text IS NULL OR task_type = :type)
  AND (:target::text IS NULL OR target_kind = :target)
  AND (:zones::text[] IS NULL OR timezone = ANY(:zones))

-- name: schedule_list
-- The tenant's schedules that match a filter, in order of name, after a given name.
SELECT {{schedule_columns}} FROM schedules
WHERE tenant_id = :tenant_id AND (:after_name::text IS NULL OR name > :after_name)
  AND {{schedule_matches}}
ORDER BY name LIMIT :limit;

-- name: schedule_delete
-- Delete schedules. Their ledger rows are kept.
DELETE FROM schedules WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- name: schedule_match_count
-- The number of the tenant's schedules that match a filter, up to a limit.
SELECT count(*) AS count FROM (
  SELECT 1 FROM schedules WHERE tenant_id = :tenant_id
    AND {{schedule_matches}}
  LIMIT :limit) AS matched;

-- name: schedule_search
-- The names that contain a text, in order of name, among the first ones of the tenant. It reads the index on the names only.
SELECT name FROM (SELECT name FROM schedules WHERE tenant_id = :tenant_id ORDER BY name LIMIT :scan) AS named
WHERE strpos(lower(name), lower(:text::text)) > 0 ORDER BY name LIMIT :limit;

-- name: schedule_count
-- The number of the tenant's schedules by status.
SELECT status, count(*) AS count FROM schedules WHERE tenant_id = :tenant_id GROUP BY status;

-- name: schedule_due
-- Schedules of some partitions that are due soon. One short index scan for each partition returns the earliest first.
SELECT m.at AS moment, s.*
FROM (SELECT coalesce(:now::timestamptz, now()) AS at) AS m
LEFT JOIN LATERAL (
  SELECT due.* FROM unnest(:partitions::smallint[]) AS p(partition)
  CROSS JOIN LATERAL (
    SELECT {{due_columns}}
    FROM schedules
    WHERE schedules.partition = p.partition AND status = 'active'
      AND due_at <= m.at + make_interval(secs => :horizon_seconds)
    ORDER BY due_at LIMIT :limit
  ) AS due
) AS s ON true;

-- name: schedule_fault
-- Pause schedules that have a fault, and store the reason. A locked schedule is skipped; the next scan finds its fault again.
WITH faulty AS MATERIALIZED (
  SELECT f.* FROM unnest(:ids::uuid[], :faults::text[]) AS f(id, fault) JOIN schedules AS s ON s.id = f.id
  FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE schedules AS s SET status = 'paused', fault = f.fault, next_tick_at = NULL, due_at = NULL,
  updated_at = coalesce(:now::timestamptz, now())
FROM faulty AS f
WHERE s.id = f.id AND s.status = 'active';

-- name: schedule_overdue
-- Active schedules with a tick that should have fired some time ago, the most overdue first.
SELECT {{schedule_columns}} FROM schedules
WHERE status = 'active' AND due_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :late_seconds)
  AND partition = ANY(ARRAY(SELECT partition FROM partitions))
ORDER BY due_at LIMIT :limit;

-- name: schedule_is_many
-- Whether a tenant has more than this number of schedules.
SELECT count(*) > :than AS is_many FROM (SELECT 1 FROM schedules WHERE tenant_id = :tenant_id LIMIT :than + 1) AS counted;

-- name: schedule_audit
-- The rules and cursors of schedules of all tenants in order of id. What the ticker writes to plan its work is not among them.
SELECT id, tenant_id, name, status, trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at,
  cursor_at, rule_at, created_at, moved_tick_at, jitter_seconds, fault
FROM schedules WHERE id > :after::uuid ORDER BY id LIMIT :limit;

-- name: schedule_audit_find
-- The same fields of schedules with these ids.
SELECT id, tenant_id, name, status, trigger_kind, trigger_text, timezone, anchor, dst_gap, dst_fold, calendars, starts_at, ends_at,
  cursor_at, rule_at, created_at, moved_tick_at, jitter_seconds, fault
FROM schedules WHERE id = ANY(:ids::uuid[]);

-- name: schedule_faulty
-- Schedules that were paused because of a fault.
SELECT {{schedule_columns}} FROM schedules WHERE fault IS NOT NULL AND (:tenant_id::uuid IS NULL OR tenant_id = :tenant_id) ORDER BY id LIMIT :limit;

-- name: schedule_past_rules
-- The former rules of these schedules.
SELECT p.schedule_id, p.rule, p.since, p.until FROM schedules AS s JOIN past_rules AS p ON p.schedule_id = s.id
WHERE s.id = ANY(:ids::uuid[]) AND s.tenant_id = :tenant_id ORDER BY p.schedule_id, p.until;

-- name: schedule_past_rule_insert
-- Store rules that edits have replaced.
INSERT INTO past_rules (schedule_id, since, until, rule)
SELECT * FROM unnest(:ids::uuid[], :since::timestamptz[], :until::timestamptz[], :rules::text[])
ON CONFLICT DO NOTHING;

-- name: schedule_using_calendar
-- Schedules whose rule may refer to a calendar. This is a text search; the caller checks the rule.
SELECT {{schedule_columns}} FROM schedules WHERE tenant_id = :tenant_id AND calendars IS NOT NULL AND strpos(calendars, :name) > 0;

-- name: schedule_page_end
-- The id of the last of the next schedules of all tenants, in order of id.
SELECT id FROM (SELECT id FROM schedules WHERE id > :after::uuid ORDER BY id LIMIT :limit) AS page ORDER BY id DESC LIMIT 1;

-- name: schedule_zones
-- The zones of the active schedules in a range of ids. Triggers that may contain a zone of their own are returned with their text.
SELECT DISTINCT timezone, trigger_kind, CASE WHEN trigger_text ILIKE '%TZ%=%' THEN trigger_text END AS trigger_text
FROM schedules WHERE id > :after::uuid AND id <= :until::uuid AND status = 'active' AND trigger_kind IN ('cron', 'rrule');

-- name: schedule_in_zones
-- Active schedules of all tenants in a range of ids whose rule may depend on one of these zones; the caller checks the rule.
SELECT {{schedule_columns}} FROM schedules
WHERE status = 'active' AND trigger_kind IN ('cron', 'rrule') AND (timezone = ANY(:zones::text[]) OR trigger_text ILIKE '%TZ%=%')
  AND id > :after::uuid AND id <= :until::uuid
ORDER BY id;
