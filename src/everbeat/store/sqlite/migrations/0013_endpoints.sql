-- Named endpoints of webhooks, and secrets of the server, such as the key of callback tokens. Nodes of the previous version can
-- keep running.

CREATE TABLE endpoints (
  tenant_id BLOB NOT NULL,
  name TEXT NOT NULL,
  url TEXT NOT NULL,
  method TEXT,
  headers TEXT NOT NULL DEFAULT '{}',
  max_concurrent INTEGER CHECK (max_concurrent > 0),
  rate_per_second REAL CHECK (rate_per_second > 0),
  secret TEXT NOT NULL,
  old_secret TEXT,
  old_secret_until INTEGER,
  revision INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, name)
) WITHOUT ROWID;

CREATE TABLE server_secrets (
  name TEXT PRIMARY KEY,
  secret TEXT NOT NULL,
  created_at INTEGER NOT NULL
) WITHOUT ROWID;
