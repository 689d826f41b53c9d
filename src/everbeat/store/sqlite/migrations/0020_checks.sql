-- Checks: jobs that run elsewhere and report by pings, with their ledger, their pings and the changes of their state. Nodes of the
-- previous version can keep running.

CREATE TABLE checks (
  id BLOB PRIMARY KEY,
  tenant_id BLOB NOT NULL,
  name TEXT NOT NULL,
  description TEXT NOT NULL,
  labels TEXT NOT NULL,
  trigger_kind TEXT NOT NULL CHECK (trigger_kind IN ('cron', 'every')),
  trigger_text TEXT NOT NULL,
  timezone TEXT NOT NULL,
  grace_seconds REAL NOT NULL CHECK (grace_seconds > 0),
  timeout_seconds REAL CHECK (timeout_seconds > 0),
  token TEXT NOT NULL UNIQUE,
  old_token TEXT UNIQUE,
  old_token_until INTEGER,
  state TEXT NOT NULL CHECK (state IN ('new', 'up', 'down', 'paused')),
  state_since INTEGER NOT NULL,
  reason TEXT CHECK (reason IN ('missed', 'failed', 'unfinished')),
  cursor_at INTEGER,
  expected_at INTEGER,
  due_at INTEGER,
  last_ping_at INTEGER,
  last_duration_seconds REAL,
  ping_count INTEGER NOT NULL,
  runs TEXT NOT NULL,
  revision INTEGER NOT NULL,
  version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  UNIQUE (tenant_id, name)
) STRICT;

CREATE INDEX checks_due ON checks (due_at) WHERE due_at IS NOT NULL;
-- Alert rules look for checks that are down.
CREATE INDEX checks_down ON checks (tenant_id, state_since) WHERE state = 'down';

CREATE TABLE check_pings (
  check_id BLOB NOT NULL,
  number INTEGER NOT NULL,
  tenant_id BLOB NOT NULL,
  at INTEGER NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('success', 'start', 'fail', 'log')),
  rid BLOB,
  exit_status INTEGER,
  method TEXT NOT NULL,
  address TEXT,
  user_agent TEXT,
  body BLOB,
  body_bytes INTEGER NOT NULL,
  duration_seconds REAL,
  PRIMARY KEY (check_id, number)
) STRICT;

CREATE INDEX check_pings_by_time ON check_pings (at);

CREATE TABLE check_ticks (
  check_id BLOB NOT NULL,
  scheduled_for INTEGER NOT NULL,
  tenant_id BLOB NOT NULL,
  outcome TEXT NOT NULL CHECK (outcome IN ('pinged', 'failed', 'missed', 'skipped')),
  reason TEXT,
  recorded_at INTEGER NOT NULL,
  ping_number INTEGER,
  until INTEGER,
  count INTEGER NOT NULL,
  PRIMARY KEY (check_id, scheduled_for)
) STRICT, WITHOUT ROWID;

CREATE INDEX check_ticks_of_tenant ON check_ticks (tenant_id, scheduled_for);
CREATE INDEX check_ticks_by_time ON check_ticks (scheduled_for);

-- `number` is the version of the check after the transition.
CREATE TABLE check_transitions (
  check_id BLOB NOT NULL,
  number INTEGER NOT NULL,
  tenant_id BLOB NOT NULL,
  at INTEGER NOT NULL,
  from_state TEXT NOT NULL,
  to_state TEXT NOT NULL,
  reason TEXT,
  scheduled_for INTEGER,
  ping_number INTEGER,
  PRIMARY KEY (check_id, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX check_transitions_by_time ON check_transitions (at);
