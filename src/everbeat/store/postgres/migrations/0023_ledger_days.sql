-- The daily roll-up of the ledger. Nodes of the previous version can keep running.

-- The counts of a schedule for a day that is closed. A schedule without ticks on a day has no row. `cursor_at` is set if the ledger of the
-- day was not complete when it was closed, as that of a paused schedule: it is counted again when the cursor has moved.
CREATE TABLE ledger_days (
  day timestamptz NOT NULL,
  schedule_id uuid NOT NULL,
  tenant_id uuid NOT NULL,
  expected integer NOT NULL,
  fired integer NOT NULL,
  missing integer NOT NULL,
  doubled integer NOT NULL,
  skipped_overlap integer,
  skipped_misfire integer,
  skipped_paused integer,
  skipped_calendar integer,
  skipped_dst_gap integer,
  skipped_zone_changed integer,
  skipped_quota integer,
  skipped_ended integer,
  lag_seconds double precision NOT NULL,
  first_at timestamptz,
  last_at timestamptz,
  cursor_at timestamptz,
  PRIMARY KEY (day, schedule_id)
);

CREATE INDEX ledger_days_incomplete ON ledger_days (schedule_id, day) WHERE cursor_at IS NOT NULL;

-- The sums of a tenant for a day, changed in the transaction that changes the rows of its schedules.
CREATE TABLE tenant_ledger_days (
  tenant_id uuid NOT NULL,
  day timestamptz NOT NULL,
  expected bigint NOT NULL DEFAULT 0,
  fired bigint NOT NULL DEFAULT 0,
  missing bigint NOT NULL DEFAULT 0,
  doubled bigint NOT NULL DEFAULT 0,
  skipped_overlap bigint NOT NULL DEFAULT 0,
  skipped_misfire bigint NOT NULL DEFAULT 0,
  skipped_paused bigint NOT NULL DEFAULT 0,
  skipped_calendar bigint NOT NULL DEFAULT 0,
  skipped_dst_gap bigint NOT NULL DEFAULT 0,
  skipped_zone_changed bigint NOT NULL DEFAULT 0,
  skipped_quota bigint NOT NULL DEFAULT 0,
  skipped_ended bigint NOT NULL DEFAULT 0,
  lag_seconds double precision NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, day)
);

-- The audit counts the rows of a part of a day. Rows are inserted in the order of their time, so a small index is enough.
CREATE INDEX ticks_by_time ON ticks USING brin (scheduled_for);
