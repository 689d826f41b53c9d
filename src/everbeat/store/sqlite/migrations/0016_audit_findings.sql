-- What the auditor has found, and the leases of loops that run in one process at a time. Processes of the previous version can
-- keep running.

-- Findings about the cluster have no tenant, and the schedule 00000000-0000-0000-0000-000000000000.
CREATE TABLE audit_findings (
  id BLOB PRIMARY KEY,
  tenant_id BLOB,
  schedule_id BLOB NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('missing', 'doubled', 'late', 'overdue', 'clock_set_back', 'unowned_partitions')),
  scheduled_for INTEGER NOT NULL,
  found_at INTEGER NOT NULL,
  resolved_at INTEGER,
  resolution TEXT CHECK (resolution IN ('fired', 'recorded', 'backfilled', 'removed', 'over', 'noted')),
  details TEXT NOT NULL,
  UNIQUE (schedule_id, kind, scheduled_for),
  CHECK ((resolved_at IS NULL) = (resolution IS NULL))
) STRICT;

CREATE INDEX audit_findings_open ON audit_findings (id) WHERE resolved_at IS NULL;
CREATE INDEX audit_findings_of_tenant ON audit_findings (tenant_id, (resolved_at IS NOT NULL), id);

-- The lease of such a loop: the right of one process to run it. It is taken by compare-and-set, and does not depend on the
-- ownership of partitions.
CREATE TABLE loop_leases (
  name TEXT PRIMARY KEY,
  holder BLOB,
  lease_until INTEGER,
  lease_seconds REAL NOT NULL,
  next_at INTEGER,
  ran_at INTEGER,
  position TEXT NOT NULL DEFAULT '{}'
) STRICT;
