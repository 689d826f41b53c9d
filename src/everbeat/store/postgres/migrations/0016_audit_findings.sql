-- What the auditor has found, and the leases of loops that run on one node at a time. Nodes of the previous version can
-- keep running.

-- Findings about the cluster have no tenant, and the schedule 00000000-0000-0000-0000-000000000000.
CREATE TABLE audit_findings (
  id uuid PRIMARY KEY,
  tenant_id uuid,
  schedule_id uuid NOT NULL,
  kind text NOT NULL CHECK (kind IN ('missing', 'doubled', 'late', 'overdue', 'clock_set_back', 'unowned_partitions')),
  scheduled_for timestamptz NOT NULL,
  found_at timestamptz NOT NULL,
  resolved_at timestamptz,
  resolution text CHECK (resolution IN ('fired', 'recorded', 'backfilled', 'removed', 'over', 'noted')),
  details text NOT NULL,
  UNIQUE (schedule_id, kind, scheduled_for),
  CHECK ((resolved_at IS NULL) = (resolution IS NULL))
);

CREATE INDEX audit_findings_open ON audit_findings (id) WHERE resolved_at IS NULL;
CREATE INDEX audit_findings_of_tenant ON audit_findings (tenant_id, (resolved_at IS NOT NULL), id);

-- The lease of such a loop: the right of one node to run it. It is taken by compare-and-set, and does not depend on the
-- ownership of partitions.
CREATE TABLE loop_leases (
  name text PRIMARY KEY,
  holder uuid,
  lease_until timestamptz,
  lease_seconds double precision NOT NULL,
  next_at timestamptz,
  ran_at timestamptz,
  position text NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
