-- Alert rules, their incidents, and the signals from which they are judged. A signal is written in the transaction of what it
-- reports, and only if the tenant has a rule that needs it. Nodes of the previous version can keep running; what they write is
-- signalled too.

ALTER TABLE tasks DROP CONSTRAINT tasks_origin_check;
ALTER TABLE tasks ADD CONSTRAINT tasks_origin_check
  CHECK (origin IN ('submit', 'tick', 'trigger', 'backfill', 'replay', 'hook', 'alert')) NOT VALID;

CREATE TABLE alerts (
  tenant_id uuid NOT NULL,
  name text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  definition text NOT NULL,
  enabled boolean NOT NULL,
  revision integer NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, name)
);

-- One row for each tenant with rules: the kinds of its rules, each between commas, and the positions of the evaluation. The version changes with each
-- evaluation and each change of a rule, so that two nodes cannot evaluate the same state.
CREATE TABLE alert_tenants (
  tenant_id uuid PRIMARY KEY,
  kinds text NOT NULL,
  version bigint NOT NULL,
  positions text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE alert_signals (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  kind text NOT NULL CHECK (kind IN ('failed', 'slow', 'skipped', 'missed', 'late')),
  at timestamptz NOT NULL,
  schedule_id uuid,
  schedule_name text,
  scheduled_for timestamptz,
  task_id uuid,
  queue text,
  type text,
  labels text,
  reason text,
  seconds double precision,
  count bigint NOT NULL DEFAULT 1
) WITH (autovacuum_vacuum_scale_factor = 0.01);

CREATE INDEX alert_signals_of_tenant ON alert_signals (tenant_id, at, id);

CREATE TABLE incidents (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  alert text COLLATE "C" NOT NULL,
  kind text NOT NULL,
  subject text NOT NULL,
  subject_name text NOT NULL,
  schedule_id uuid,
  task_id uuid,
  summary text NOT NULL,
  details text NOT NULL,
  state text NOT NULL CHECK (state IN ('open', 'acknowledged', 'resolved')),
  count bigint NOT NULL,
  occurred_at timestamptz NOT NULL,
  opened_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  resolved_at timestamptz,
  resolution text CHECK (resolution IN ('recovered', 'expired', 'removed')),
  acknowledged_at timestamptz,
  acknowledged_by text,
  note text,
  pending text CHECK (pending IN ('opened', 'resolved')),
  announced_at timestamptz,
  reminded_at timestamptz,
  reminders integer NOT NULL DEFAULT 0,
  CHECK ((state = 'resolved') = (resolved_at IS NOT NULL))
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX incidents_unresolved ON incidents (tenant_id, alert, subject) WHERE state <> 'resolved';
CREATE INDEX incidents_due ON incidents (tenant_id, alert) WHERE pending IS NOT NULL;
CREATE INDEX incidents_of_tenant ON incidents (tenant_id, opened_at, id);
CREATE INDEX incidents_by_end ON incidents (resolved_at) WHERE resolved_at IS NOT NULL;

CREATE FUNCTION everbeat_signal_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO alert_signals (id, tenant_id, kind, at, schedule_id, schedule_name, scheduled_for, task_id, queue, type, labels,
    reason, seconds)
  SELECT everbeat_uuid7(), NEW.tenant_id, s.kind, NEW.finished_at, NEW.schedule_id, NEW.schedule_name, NEW.scheduled_for, NEW.id,
    NEW.queue, NEW.type, NEW.labels, NEW.state, extract(epoch FROM NEW.finished_at - NEW.started_at)::double precision
  FROM alert_tenants AS a
  JOIN (VALUES
    ('failed', NEW.state IN ('dead', 'failed')), ('slow', NEW.finished_at - NEW.started_at >= interval '1 second')
  ) AS s(kind, applies) ON s.applies
  WHERE a.tenant_id = NEW.tenant_id AND CASE s.kind
    WHEN 'failed' THEN strpos(a.kinds, ',dead,') > 0 OR strpos(a.kinds, ',success_rate,') > 0
    ELSE strpos(a.kinds, ',slow,') > 0 END;
  RETURN NULL;
END
$$;

-- A task that took less than a second is never slow, so that most completions cost one comparison.
CREATE TRIGGER task_history_signals AFTER INSERT ON task_history FOR EACH ROW
WHEN (NEW.origin <> 'alert' AND (NEW.state IN ('dead', 'failed') OR NEW.finished_at - NEW.started_at >= interval '1 second'))
EXECUTE FUNCTION everbeat_signal_task();

CREATE FUNCTION everbeat_signal_skip() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO alert_signals (id, tenant_id, kind, at, schedule_id, scheduled_for, reason, count)
  SELECT everbeat_uuid7(), NEW.tenant_id, 'skipped', NEW.fired_at, NEW.schedule_id, coalesce(NEW.until, NEW.scheduled_for), NEW.reason,
    NEW.count
  FROM alert_tenants AS a
  WHERE a.tenant_id = NEW.tenant_id
    AND (strpos(a.kinds, ',skipped,') > 0 OR NEW.reason = 'misfire' AND strpos(a.kinds, ',missed,') > 0);
  RETURN NULL;
END
$$;

CREATE TRIGGER ticks_signals AFTER INSERT ON ticks FOR EACH ROW WHEN (NEW.outcome = 'skipped')
EXECUTE FUNCTION everbeat_signal_skip();

CREATE FUNCTION everbeat_signal_finding() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  signal text := CASE NEW.kind WHEN 'missing' THEN 'missed' ELSE 'late' END;
BEGIN
  INSERT INTO alert_signals (id, tenant_id, kind, at, schedule_id, schedule_name, scheduled_for, reason, seconds)
  SELECT everbeat_uuid7(), NEW.tenant_id, signal, NEW.found_at, NEW.schedule_id, NEW.details::jsonb ->> 'name', NEW.scheduled_for,
    NEW.kind, (NEW.details::jsonb ->> 'lag_seconds')::double precision
  FROM alert_tenants AS a WHERE a.tenant_id = NEW.tenant_id AND strpos(a.kinds, ',' || signal || ',') > 0;
  RETURN NULL;
END
$$;

-- The auditor's findings about ticks. An overdue tick is not signalled: a rule for late ticks looks for them itself.
CREATE TRIGGER audit_findings_signals AFTER INSERT ON audit_findings FOR EACH ROW
WHEN (NEW.tenant_id IS NOT NULL AND NEW.kind IN ('missing', 'late')) EXECUTE FUNCTION everbeat_signal_finding();
