-- Workers, and for what they ask. Written by the nodes in batches, at most about every 10 seconds. A worker without a tenant is a
-- fleet. Nodes of the previous version can keep running; they write nothing here.

CREATE TABLE workers (
  id BLOB PRIMARY KEY,
  tenant_id BLOB,
  worker TEXT NOT NULL,
  queues TEXT NOT NULL,
  types TEXT,
  concurrency INTEGER,
  version TEXT,
  node TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('live', 'stopping', 'gone')),
  lease_seconds REAL NOT NULL,
  started_at INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL
) STRICT;

CREATE INDEX workers_seen ON workers (tenant_id, last_seen_at, id);
