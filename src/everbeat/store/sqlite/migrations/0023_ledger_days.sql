-- The daily roll-up of the ledger. Processes of the previous version can keep running.

-- The counts of a schedule for a day that is closed. A schedule without ticks on a day has no row. `cursor_at` is set if the ledger of the
-- day was not complete when it was closed, as that of a paused schedule: it is counted again when the cursor has moved.
CREATE TABLE ledger_days (
  day INTEGER NOT NULL,
  schedule_id BLOB NOT NULL,
  tenant_id BLOB NOT NULL,
  expected INTEGER NOT NULL,
  fired INTEGER NOT NULL,
  missing INTEGER NOT NULL,
  doubled INTEGER NOT NULL,
  skipped_overlap INTEGER,
  skipped_misfire INTEGER,
  skipped_paused INTEGER,
  skipped_calendar INTEGER,
  skipped_dst_gap INTEGER,
  skipped_zone_changed INTEGER,
  skipped_quota INTEGER,
  skipped_ended INTEGER,
  lag_seconds REAL NOT NULL,
  first_at INTEGER,
  last_at INTEGER,
  cursor_at INTEGER,
  PRIMARY KEY (day, schedule_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX ledger_days_incomplete ON ledger_days (schedule_id, day) WHERE cursor_at IS NOT NULL;

-- The sums of a tenant for a day, changed in the transaction that changes the rows of its schedules.
CREATE TABLE tenant_ledger_days (
  tenant_id BLOB NOT NULL,
  day INTEGER NOT NULL,
  expected INTEGER NOT NULL DEFAULT 0,
  fired INTEGER NOT NULL DEFAULT 0,
  missing INTEGER NOT NULL DEFAULT 0,
  doubled INTEGER NOT NULL DEFAULT 0,
  skipped_overlap INTEGER NOT NULL DEFAULT 0,
  skipped_misfire INTEGER NOT NULL DEFAULT 0,
  skipped_paused INTEGER NOT NULL DEFAULT 0,
  skipped_calendar INTEGER NOT NULL DEFAULT 0,
  skipped_dst_gap INTEGER NOT NULL DEFAULT 0,
  skipped_zone_changed INTEGER NOT NULL DEFAULT 0,
  skipped_quota INTEGER NOT NULL DEFAULT 0,
  skipped_ended INTEGER NOT NULL DEFAULT 0,
  lag_seconds REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, day)
) STRICT;
