-- Named endpoints of webhooks, and secrets of the server, such as the key of callback tokens. Nodes of the previous version can
-- keep running.

CREATE TABLE endpoints (
  tenant_id uuid NOT NULL,
  name text NOT NULL,
  url text NOT NULL,
  method text,
  headers text NOT NULL DEFAULT '{}',
  max_concurrent integer CHECK (max_concurrent > 0),
  rate_per_second double precision CHECK (rate_per_second > 0),
  secret text NOT NULL,
  old_secret text,
  old_secret_until timestamptz,
  revision integer NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, name)
);

CREATE TABLE server_secrets (
  name text PRIMARY KEY,
  secret text NOT NULL,
  created_at timestamptz NOT NULL
);
