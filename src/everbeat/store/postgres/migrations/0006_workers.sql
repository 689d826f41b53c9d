-- Workers, and for what they ask. Written by the nodes in batches, at most about every 10 seconds. A worker without a tenant is a
-- fleet. Nodes of the previous version can keep running; they write nothing here.

CREATE TABLE workers (
  id uuid PRIMARY KEY,
  tenant_id uuid,
  worker text NOT NULL,
  queues text NOT NULL,
  types text,
  concurrency integer,
  version text,
  node text NOT NULL,
  state text NOT NULL CHECK (state IN ('live', 'stopping', 'gone')),
  lease_seconds double precision NOT NULL,
  started_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL
);

CREATE INDEX workers_seen ON workers (tenant_id, last_seen_at, id);
