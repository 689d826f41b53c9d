-- fragment: alert_columns
-- The columns of a rule.
tenant_id, name, definition, revision, created_at, updated_at

-- fragment: incident_columns
-- All columns of an incident.
id, tenant_id, alert, kind, subject, subject_name, schedule_id, task_id, summary, details, state, count, occurred_at, opened_at,
last_seen_at, resolved_at, resolution, acknowledged_at, acknowledged_by, note, pending, announced_at, reminded_at, reminders

-- name: alert_list
-- The tenant's rules in order of name, after a given name.
SELECT {{alert_columns}} FROM alerts WHERE tenant_id = :tenant_id AND name > :after_name ORDER BY name LIMIT :limit;

-- name: alert_find
-- The tenant's rules with these names.
SELECT {{alert_columns}} FROM alerts WHERE tenant_id = :tenant_id AND name = ANY(:names::text[]);

-- name: alert_insert
-- Insert a rule, unless its name is taken or the tenant has as many as it may have.
INSERT INTO alerts (tenant_id, name, kind, definition, enabled, revision, created_at, updated_at)
SELECT :tenant_id::uuid, :name::text, :kind::text, :definition::text, :enabled::boolean, :revision::integer, :created_at::timestamptz,
  :updated_at::timestamptz
WHERE (SELECT count(*) FROM alerts WHERE tenant_id = :tenant_id) < :max_alerts
ON CONFLICT (tenant_id, name) DO NOTHING;

-- name: alert_replace
-- Replace a rule, only if its revision is as expected.
UPDATE alerts SET kind = :kind, definition = :definition, enabled = :enabled, revision = :revision, updated_at = :updated_at
WHERE tenant_id = :tenant_id AND name = :name AND revision = :expected;

-- name: alert_delete
-- Delete a rule.
DELETE FROM alerts WHERE tenant_id = :tenant_id AND name = :name;

-- name: alert_tenant_refresh
-- Store the kinds of the tenant's rules after a change of one, and end the evaluation that may be in progress.
INSERT INTO alert_tenants (tenant_id, kinds, version, positions)
VALUES (:tenant_id, coalesce((
  SELECT ',' || string_agg(DISTINCT kind, ',') || ',' FROM alerts WHERE tenant_id = :tenant_id AND enabled), ''), 1, '{}')
ON CONFLICT (tenant_id) DO UPDATE SET kinds = excluded.kinds, version = alert_tenants.version + 1;

-- name: alert_remove_incidents
-- Resolve the incidents of a rule that is removed, without a notification.
UPDATE incidents SET state = 'resolved', resolution = coalesce(resolution, 'removed'), resolved_at = coalesce(resolved_at, coalesce(:now::timestamptz, now())),
  pending = NULL
WHERE tenant_id = :tenant_id AND alert = :name AND (state <> 'resolved' OR pending IS NOT NULL);

-- name: alert_tenants
-- The tenants with rules or with incidents that wait for an evaluation, after a given one.
SELECT tenant_id, version, positions FROM alert_tenants AS a
WHERE (:after::uuid IS NULL OR a.tenant_id > :after) AND (a.kinds <> '' OR EXISTS (
  SELECT 1 FROM incidents AS i WHERE i.tenant_id = a.tenant_id AND i.state <> 'resolved'))
ORDER BY tenant_id LIMIT :limit;

-- name: alert_signals
-- The oldest signals of a tenant.
SELECT id, tenant_id, kind, at, schedule_id, schedule_name, scheduled_for, task_id, queue, type, labels, reason, seconds, count
FROM alert_signals WHERE tenant_id = :tenant_id ORDER BY at, id LIMIT :limit;

-- name: alert_apply
-- Begin to store an evaluation, only if nothing else was stored since its facts were read.
UPDATE alert_tenants SET version = version + 1, positions = :positions WHERE tenant_id = :tenant_id AND version = :version;

-- name: alert_apply_signals
-- Delete the signals that were judged.
DELETE FROM alert_signals WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- fragment: incident_records
-- Incidents that are passed as JSON.
jsonb_to_recordset(:incidents::jsonb) AS r(id uuid, tenant_id uuid, alert text, kind text, subject text, subject_name text,
  schedule_id uuid, task_id uuid, summary text, details text, state text, count bigint, occurred_at timestamptz,
  opened_at timestamptz, last_seen_at timestamptz, resolved_at timestamptz, resolution text, acknowledged_at timestamptz,
  acknowledged_by text, note text, pending text, announced_at timestamptz, reminded_at timestamptz, reminders integer)

-- name: alert_apply_opened
-- Insert incidents. There is only one unresolved incident for a rule and a subject.
INSERT INTO incidents ({{incident_columns}}) SELECT {{r.incident_columns}} FROM {{incident_records}} WHERE r.tenant_id = :tenant_id;

-- name: alert_apply_changed
-- Change incidents. Whether somebody has acknowledged one is not changed.
UPDATE incidents AS i SET task_id = r.task_id, summary = r.summary, details = r.details, count = r.count,
  occurred_at = r.occurred_at, last_seen_at = r.last_seen_at,
  state = CASE WHEN r.resolved_at IS NULL THEN i.state ELSE 'resolved' END, resolved_at = r.resolved_at,
  resolution = r.resolution, pending = r.pending, announced_at = r.announced_at, reminded_at = r.reminded_at, reminders = r.reminders
FROM {{incident_records}} WHERE i.tenant_id = :tenant_id AND i.id = r.id;

-- name: alert_signal_prune
-- Delete signals that nothing has judged for a long time: their tenant has no rules any more.
DELETE FROM alert_signals WHERE tenant_id IN (SELECT tenant_id FROM alert_tenants WHERE kinds = '') AND id IN (
  SELECT id FROM alert_signals WHERE at < coalesce(:now::timestamptz, now()) - make_interval(secs => :old_seconds) LIMIT :limit);

-- name: incident_list
-- The tenant's incidents that match a filter, newest first.
SELECT {{incident_columns}} FROM incidents
WHERE tenant_id = :tenant_id AND (opened_at, id) < (:before_at, :before_id) AND (:alert::text IS NULL OR alert = :alert)
  AND state = ANY(:states::text[])
ORDER BY opened_at DESC, id DESC LIMIT :limit;

-- name: incident_find
-- The tenant's incidents with these ids.
SELECT {{incident_columns}} FROM incidents WHERE tenant_id = :tenant_id AND id = ANY(:ids::uuid[]);

-- name: incident_pending
-- The tenant's incidents that are not resolved, or whose end is still to be reported.
SELECT {{incident_columns}} FROM incidents WHERE tenant_id = :tenant_id AND state <> 'resolved'
UNION ALL
SELECT {{incident_columns}} FROM incidents WHERE tenant_id = :tenant_id AND state = 'resolved' AND pending IS NOT NULL
LIMIT :limit;

-- name: incident_acknowledge
-- Acknowledge an open incident.
UPDATE incidents SET state = 'acknowledged', acknowledged_at = coalesce(:now::timestamptz, now()), acknowledged_by = :actor, note = :note
WHERE tenant_id = :tenant_id AND id = :id AND state = 'open';

-- name: incident_counts
-- The number of unresolved incidents of a tenant, or of all, by kind and state.
SELECT kind, state, count(*) AS count FROM incidents
WHERE state <> 'resolved' AND (:tenant_id::uuid IS NULL OR tenant_id = :tenant_id) GROUP BY kind, state ORDER BY kind, state;

-- name: incident_prune
-- Delete incidents that were resolved long ago.
DELETE FROM incidents WHERE id IN (
  SELECT id FROM incidents WHERE resolved_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :resolved_seconds) AND pending IS NULL
  ORDER BY resolved_at LIMIT :limit);

-- name: schedule_late
-- Active schedules of a tenant with a tick that should have fired some time ago, the most overdue first.
SELECT {{schedule_columns}} FROM schedules
WHERE status = 'active' AND tenant_id = :tenant_id AND due_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :late_seconds)
  AND partition = ANY(ARRAY(SELECT partition FROM partitions))
ORDER BY due_at LIMIT :limit;

-- name: schedule_runs
-- The newest finished tasks of each of these schedules, newest first. BETWEEN keeps the schedule in the order, so that only the
-- index of the schedule provides it, and IS TRUE prevents the use of the tenant's index. Those may read the whole history.
SELECT r.id, w.id AS schedule_id, r.state, r.scheduled_for, r.started_at, r.finished_at
FROM unnest(:ids::uuid[]) AS w(id) CROSS JOIN LATERAL (
  SELECT h.id, h.state, h.scheduled_for, h.started_at, h.finished_at FROM task_history AS h
  WHERE h.schedule_id BETWEEN w.id AND w.id AND (h.tenant_id = :tenant_id) IS TRUE ORDER BY h.schedule_id DESC, h.id DESC LIMIT :limit
) AS r ORDER BY w.id, r.id DESC;

-- name: task_slow
-- Running tasks of a tenant whose attempt began some time ago, the oldest first.
SELECT id, queue, type, schedule_id, schedule_name AS schedule, labels, started_at FROM tasks
WHERE state = 'running' AND tenant_id = :tenant_id AND origin <> 'alert' AND started_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :seconds)
ORDER BY started_at LIMIT :limit;

-- name: task_ready_ages
-- The ready tasks of a tenant that have waited for some time, by queue and type. A loose index scan finds the queues.
WITH RECURSIVE queues AS (
  (SELECT queue FROM tasks WHERE state = 'ready' AND queue > '' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT t.queue FROM tasks AS t WHERE t.state = 'ready' AND t.queue > q.queue ORDER BY t.queue LIMIT 1)
  FROM queues AS q WHERE q.queue IS NOT NULL
)
SELECT r.queue, r.type, count(*) AS tasks, min(r.run_at) AS oldest_at
FROM queues AS q CROSS JOIN LATERAL (
  SELECT t.queue, t.type, t.run_at FROM tasks AS t
  WHERE t.state = 'ready' AND t.queue = q.queue AND t.tenant_id = :tenant_id AND t.origin <> 'alert'
    AND t.run_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :seconds)
) AS r
WHERE q.queue IS NOT NULL
GROUP BY r.queue, r.type ORDER BY r.queue, r.type LIMIT :limit;

-- name: task_outcomes
-- How the newest finished tasks of a tenant ended, among those with an id from a given one on.
SELECT state, count(*) AS count FROM (
  SELECT state, queue, labels FROM task_history WHERE tenant_id = :tenant_id AND id >= :since_id AND origin <> 'alert'
  ORDER BY id DESC LIMIT :limit
) AS newest
WHERE (:queue::text IS NULL OR queue = :queue) AND (:label_key::text IS NULL OR jsonb_exists(labels::jsonb, :label_key))
  AND (:label_value::text IS NULL OR labels::jsonb ->> :label_key = :label_value)
GROUP BY state ORDER BY state;

-- name: task_completions
-- When tasks without a schedule were last completed, by queue and type, among the newest finished tasks of a tenant.
SELECT queue, type, max(finished_at) AS completed_at FROM (
  SELECT queue, type, state, schedule_id, finished_at FROM task_history WHERE tenant_id = :tenant_id ORDER BY id DESC LIMIT :limit
) AS newest WHERE state = 'completed' AND schedule_id IS NULL GROUP BY queue, type ORDER BY queue, type;
