-- fragment: alert_columns
-- The columns of a rule.
-- returns: tenant_id cached_uuid, created_at time, updated_at time
tenant_id, name, definition, revision, created_at, updated_at

-- fragment: incident_columns
-- All columns of an incident.
-- returns: id uuid, tenant_id cached_uuid, schedule_id uuid, task_id uuid, occurred_at time, opened_at time, last_seen_at time
-- returns: resolved_at time, acknowledged_at time, announced_at time, reminded_at time
id, tenant_id, alert, kind, subject, subject_name, schedule_id, task_id, summary, details, state, count, occurred_at, opened_at,
last_seen_at, resolved_at, resolution, acknowledged_at, acknowledged_by, note, pending, announced_at, reminded_at, reminders

-- name: alert_list
-- The tenant's rules in order of name, after a given name.
-- returns: {{alert_columns}}
SELECT {{alert_columns}} FROM alerts WHERE tenant_id = :tenant_id AND name > :after_name ORDER BY name LIMIT :limit;

-- name: alert_find
-- The tenant's rules with these names.
-- returns: {{alert_columns}}
SELECT {{alert_columns}} FROM alerts WHERE tenant_id = :tenant_id AND name IN (SELECT value FROM json_each(:names));

-- name: alert_insert
-- Insert a rule, unless its name is taken or the tenant has as many as it may have.
INSERT INTO alerts (tenant_id, name, kind, definition, enabled, revision, created_at, updated_at)
SELECT :tenant_id, :name, :kind, :definition, :enabled, :revision, :created_at, :updated_at
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
  SELECT ',' || group_concat(DISTINCT kind) || ',' FROM alerts WHERE tenant_id = :tenant_id AND enabled), ''), 1, '{}')
ON CONFLICT (tenant_id) DO UPDATE SET kinds = excluded.kinds, version = alert_tenants.version + 1;

-- name: alert_remove_incidents
-- Resolve the incidents of a rule that is removed, without a notification.
UPDATE incidents SET state = 'resolved', resolution = coalesce(resolution, 'removed'), resolved_at = coalesce(resolved_at, :now),
  pending = NULL
WHERE tenant_id = :tenant_id AND alert = :name AND (state <> 'resolved' OR pending IS NOT NULL);

-- name: alert_tenants
-- The tenants with rules or with incidents that wait for an evaluation, after a given one.
-- returns: tenant_id cached_uuid
SELECT tenant_id, version, positions FROM alert_tenants AS a
WHERE (:after IS NULL OR a.tenant_id > :after) AND (a.kinds <> '' OR EXISTS (
  SELECT 1 FROM incidents AS i WHERE i.tenant_id = a.tenant_id AND i.state <> 'resolved'))
ORDER BY tenant_id LIMIT :limit;

-- name: alert_signals
-- The oldest signals of a tenant.
-- returns: id uuid, tenant_id cached_uuid, at time, schedule_id uuid, scheduled_for time, task_id uuid
SELECT id, tenant_id, kind, at, schedule_id, schedule_name, scheduled_for, task_id, queue, type, labels, reason, seconds, count
FROM alert_signals WHERE tenant_id = :tenant_id ORDER BY at, id LIMIT :limit;

-- name: alert_apply
-- Begin to store an evaluation, only if nothing else was stored since its facts were read.
UPDATE alert_tenants SET version = version + 1, positions = :positions WHERE tenant_id = :tenant_id AND version = :version;

-- name: alert_apply_signals
-- Delete the signals that were judged.
DELETE FROM alert_signals WHERE tenant_id = :tenant_id AND id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: alert_apply_opened
-- Insert incidents. There is only one unresolved incident for a rule and a subject.
INSERT INTO incidents ({{incident_columns}}) VALUES ({{:incident_columns}});

-- name: alert_apply_changed
-- Change incidents. Whether somebody has acknowledged one is not changed.
UPDATE incidents SET task_id = :task_id, summary = :summary, details = :details, count = :count, occurred_at = :occurred_at,
  last_seen_at = :last_seen_at, state = iif(:resolved_at IS NULL, state, 'resolved'), resolved_at = :resolved_at,
  resolution = :resolution, pending = :pending, announced_at = :announced_at, reminded_at = :reminded_at, reminders = :reminders
WHERE tenant_id = :tenant_id AND id = :id;

-- name: alert_signal_prune
-- Delete signals that nothing has judged for a long time: their tenant has no rules any more.
DELETE FROM alert_signals WHERE tenant_id IN (SELECT tenant_id FROM alert_tenants WHERE kinds = '') AND id IN (
  SELECT id FROM alert_signals WHERE at < :now - {{microseconds(:old_seconds)}} LIMIT :limit);

-- name: incident_list
-- The tenant's incidents that match a filter, newest first.
-- returns: {{incident_columns}}
SELECT {{incident_columns}} FROM incidents
WHERE tenant_id = :tenant_id AND (opened_at, id) < (:before_at, :before_id) AND (:alert IS NULL OR alert = :alert)
  AND state IN (SELECT value FROM json_each(:states))
ORDER BY opened_at DESC, id DESC LIMIT :limit;

-- name: incident_find
-- The tenant's incidents with these ids.
-- returns: {{incident_columns}}
SELECT {{incident_columns}} FROM incidents WHERE tenant_id = :tenant_id AND id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: incident_pending
-- The tenant's incidents that are not resolved, or whose end is still to be reported.
-- returns: {{incident_columns}}
SELECT {{incident_columns}} FROM incidents WHERE tenant_id = :tenant_id AND state <> 'resolved'
UNION ALL
SELECT {{incident_columns}} FROM incidents WHERE tenant_id = :tenant_id AND state = 'resolved' AND pending IS NOT NULL
LIMIT :limit;

-- name: incident_acknowledge
-- Acknowledge an open incident.
UPDATE incidents SET state = 'acknowledged', acknowledged_at = :now, acknowledged_by = :actor, note = :note
WHERE tenant_id = :tenant_id AND id = :id AND state = 'open';

-- name: incident_counts
-- The number of unresolved incidents of a tenant, or of all, by kind and state.
SELECT kind, state, count(*) AS count FROM incidents
WHERE state <> 'resolved' AND (:tenant_id IS NULL OR tenant_id = :tenant_id) GROUP BY kind, state ORDER BY kind, state;

-- name: incident_prune
-- Delete incidents that were resolved long ago.
DELETE FROM incidents WHERE id IN (
  SELECT id FROM incidents WHERE resolved_at < :now - {{microseconds(:resolved_seconds)}} AND pending IS NULL
  ORDER BY resolved_at LIMIT :limit);

-- name: schedule_late
-- Active schedules of a tenant with a tick that should have fired some time ago, the most overdue first.
-- returns: {{schedule_columns}}
SELECT {{schedule_columns}} FROM schedules
WHERE status = 'active' AND +tenant_id = :tenant_id AND due_at < :now - {{microseconds(:late_seconds)}}
  AND partition IN (SELECT partition FROM partitions)
ORDER BY due_at LIMIT :limit;

-- name: schedule_runs
-- The newest finished tasks of each of these schedules, newest first.
-- returns: id uuid, schedule_id uuid, scheduled_for time, started_at time, finished_at time
SELECT h.id, h.schedule_id, h.state, h.scheduled_for, h.started_at, h.finished_at
FROM json_each(:ids) AS w CROSS JOIN task_history AS h
WHERE h.schedule_id = unhex(w.value) AND h.tenant_id = :tenant_id AND h.id >= coalesce((
  SELECT n.id FROM task_history AS n WHERE n.schedule_id = unhex(w.value) ORDER BY n.id DESC LIMIT 1 OFFSET :limit - 1), x'')
ORDER BY h.schedule_id, h.id DESC;

-- name: task_slow
-- Running tasks of a tenant whose attempt began some time ago, the oldest first.
-- returns: id uuid, schedule_id uuid, started_at time
SELECT id, queue, type, schedule_id, schedule_name AS schedule, labels, started_at FROM tasks
WHERE state = 'running' AND tenant_id = :tenant_id AND origin <> 'alert' AND started_at < :now - {{microseconds(:seconds)}}
ORDER BY started_at LIMIT :limit;

-- name: task_ready_ages
-- The ready tasks of a tenant that have waited for some time, by queue and type. A loose index scan finds the queues.
-- returns: oldest_at time
WITH RECURSIVE queues (queue) AS (
  SELECT min(queue) FROM tasks INDEXED BY tasks_ready WHERE state = 'ready' AND queue > ''
  UNION ALL
  SELECT (SELECT min(t.queue) FROM tasks AS t INDEXED BY tasks_ready WHERE t.state = 'ready' AND t.queue > q.queue)
  FROM queues AS q WHERE q.queue IS NOT NULL
)
SELECT t.queue, t.type, count(*) AS tasks, min(t.run_at) AS oldest_at
FROM queues AS q CROSS JOIN tasks AS t INDEXED BY tasks_ready
WHERE t.state = 'ready' AND t.queue = q.queue AND t.tenant_id = :tenant_id AND t.origin <> 'alert'
  AND t.run_at < :now - {{microseconds(:seconds)}}
GROUP BY t.queue, t.type ORDER BY t.queue, t.type LIMIT :limit;

-- name: task_outcomes
-- How the newest finished tasks of a tenant ended, among those with an id from a given one on.
SELECT state, count(*) AS count FROM (
  SELECT state, queue, labels FROM task_history WHERE tenant_id = :tenant_id AND id >= :since_id AND origin <> 'alert'
  ORDER BY id DESC LIMIT :limit
) WHERE (:queue IS NULL OR queue = :queue) AND (:label_key IS NULL OR EXISTS (
  SELECT 1 FROM json_each(labels) AS l WHERE l.key = :label_key AND (:label_value IS NULL OR l.value = :label_value)))
GROUP BY state ORDER BY state;

-- name: task_completions
-- When tasks without a schedule were last completed, by queue and type, among the newest finished tasks of a tenant.
-- returns: completed_at time
SELECT queue, type, max(finished_at) AS completed_at FROM (
  SELECT queue, type, state, schedule_id, finished_at FROM task_history WHERE tenant_id = :tenant_id ORDER BY id DESC LIMIT :limit
) WHERE state = 'completed' AND schedule_id IS NULL GROUP BY queue, type ORDER BY queue, type;
