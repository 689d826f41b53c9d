-- Alert rules, their incidents, and the signals from which they are judged. A signal is written in the transaction of what it
-- reports, and only if the tenant has a rule that needs it. Processes of the previous version can keep running; what they write is
-- signalled too.
-- Differs from postgres: the text of a CHECK constraint is replaced, as in 0007_time_zones.sql. Ids of signals are random.

PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql,
  'CHECK (origin IN (''submit'', ''tick'', ''trigger'', ''backfill'', ''replay'', ''hook''))',
  'CHECK (origin IN (''submit'', ''tick'', ''trigger'', ''backfill'', ''replay'', ''hook'', ''alert''))')
  WHERE type = 'table' AND name = 'tasks';
PRAGMA writable_schema = RESET;

CREATE TABLE alerts (
  tenant_id BLOB NOT NULL,
  name TEXT NOT NULL,
  kind TEXT NOT NULL,
  definition TEXT NOT NULL,
  enabled INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, name)
);

-- One row for each tenant with rules: the kinds of its rules, each between commas, and the positions of the evaluation. The version changes with each
-- evaluation and each change of a rule, so that two nodes cannot evaluate the same state.
CREATE TABLE alert_tenants (
  tenant_id BLOB PRIMARY KEY,
  kinds TEXT NOT NULL,
  version INTEGER NOT NULL,
  positions TEXT NOT NULL
);

CREATE TABLE alert_signals (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('failed', 'slow', 'skipped', 'missed', 'late')),
  at INTEGER NOT NULL,
  schedule_id BLOB,
  schedule_name TEXT,
  scheduled_for INTEGER,
  task_id BLOB,
  queue TEXT,
  type TEXT,
  labels TEXT,
  reason TEXT,
  seconds REAL,
  count INTEGER NOT NULL DEFAULT 1
);

CREATE INDEX alert_signals_of_tenant ON alert_signals (tenant_id, at, id);

CREATE TABLE incidents (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  alert TEXT NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  subject_name TEXT NOT NULL,
  schedule_id BLOB,
  task_id BLOB,
  summary TEXT NOT NULL,
  details TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'acknowledged', 'resolved')),
  count INTEGER NOT NULL,
  occurred_at INTEGER NOT NULL,
  opened_at INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL,
  resolved_at INTEGER,
  resolution TEXT CHECK (resolution IN ('recovered', 'expired', 'removed')),
  acknowledged_at INTEGER,
  acknowledged_by TEXT,
  note TEXT,
  pending TEXT CHECK (pending IN ('opened', 'resolved')),
  announced_at INTEGER,
  reminded_at INTEGER,
  reminders INTEGER NOT NULL DEFAULT 0,
  CHECK ((state = 'resolved') = (resolved_at IS NOT NULL))
);

CREATE UNIQUE INDEX incidents_unresolved ON incidents (tenant_id, alert, subject) WHERE state <> 'resolved';
CREATE INDEX incidents_due ON incidents (tenant_id, alert) WHERE pending IS NOT NULL;
CREATE INDEX incidents_of_tenant ON incidents (tenant_id, opened_at, id);
CREATE INDEX incidents_by_end ON incidents (resolved_at) WHERE resolved_at IS NOT NULL;

-- A task that took less than a second is never slow, so that most completions cost one comparison.
CREATE TRIGGER task_history_signals AFTER INSERT ON task_history
WHEN NEW.origin <> 'alert' AND (NEW.state IN ('dead', 'failed') OR NEW.finished_at - NEW.started_at >= 1000000)
BEGIN
  INSERT INTO alert_signals (id, tenant_id, kind, at, schedule_id, schedule_name, scheduled_for, task_id, queue, type, labels,
    reason, seconds)
  SELECT randomblob(16), NEW.tenant_id, s.kind, NEW.finished_at, NEW.schedule_id, NEW.schedule_name, NEW.scheduled_for, NEW.id,
    NEW.queue, NEW.type, NEW.labels, NEW.state, (NEW.finished_at - NEW.started_at) / 1000000.0
  FROM alert_tenants AS a
  JOIN (
    SELECT 'failed' AS kind, NEW.state IN ('dead', 'failed') AS applies
    UNION ALL SELECT 'slow', NEW.finished_at - NEW.started_at >= 1000000
  ) AS s ON s.applies
  WHERE a.tenant_id = NEW.tenant_id AND CASE s.kind
    WHEN 'failed' THEN instr(a.kinds, ',dead,') > 0 OR instr(a.kinds, ',success_rate,') > 0
    ELSE instr(a.kinds, ',slow,') > 0 END;
END;

CREATE TRIGGER ticks_signals AFTER INSERT ON ticks
WHEN NEW.outcome = 'skipped'
BEGIN
  INSERT INTO alert_signals (id, tenant_id, kind, at, schedule_id, scheduled_for, reason, count)
  SELECT randomblob(16), NEW.tenant_id, 'skipped', NEW.fired_at, NEW.schedule_id, coalesce(NEW.until, NEW.scheduled_for), NEW.reason,
    NEW.count
  FROM alert_tenants AS a
  WHERE a.tenant_id = NEW.tenant_id
    AND (instr(a.kinds, ',skipped,') > 0 OR NEW.reason = 'misfire' AND instr(a.kinds, ',missed,') > 0);
END;

-- The auditor's findings about ticks. An overdue tick is not signalled: a rule for late ticks looks for them itself.
CREATE TRIGGER audit_findings_signals AFTER INSERT ON audit_findings
WHEN NEW.tenant_id IS NOT NULL AND NEW.kind IN ('missing', 'late')
BEGIN
  INSERT INTO alert_signals (id, tenant_id, kind, at, schedule_id, schedule_name, scheduled_for, reason, seconds)
  SELECT randomblob(16), NEW.tenant_id, iif(NEW.kind = 'missing', 'missed', 'late'), NEW.found_at, NEW.schedule_id,
    NEW.details ->> 'name', NEW.scheduled_for, NEW.kind, NEW.details ->> 'lag_seconds'
  FROM alert_tenants AS a
  WHERE a.tenant_id = NEW.tenant_id AND instr(a.kinds, iif(NEW.kind = 'missing', ',missed,', ',late,')) > 0;
END;
