-- Tenants with weights and quotas, API keys, the audit log, fair keys, payloads in a blob store. Nodes of the previous version
-- can keep running.

CREATE TABLE tenants (
  id uuid PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  weight double precision NOT NULL DEFAULT 1 CHECK (weight > 0),
  max_schedules integer CHECK (max_schedules >= 0),
  max_ready integer CHECK (max_ready >= 0),
  max_running integer CHECK (max_running >= 0),
  submits_per_second double precision CHECK (submits_per_second > 0),
  max_payload_bytes integer CHECK (max_payload_bytes >= 0),
  revision integer NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
);

-- The default tenant, for installations that do not use tenants. It has no limits unless they are set.
INSERT INTO tenants (id, name, created_at, updated_at) VALUES ('00000000-0000-0000-0000-000000000000', 'default', now(), now());

-- Only the hash of a key is stored. A fleet key is valid for every tenant.
CREATE TABLE api_keys (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL REFERENCES tenants (id),
  name text NOT NULL,
  hash bytea NOT NULL UNIQUE,
  hint text NOT NULL,
  scopes text NOT NULL,
  is_fleet boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz
);

CREATE INDEX api_keys_of_tenant ON api_keys (tenant_id, id);

-- Who changed what. Rows are only inserted, never changed or deleted.
CREATE TABLE audit_log (
  id uuid PRIMARY KEY,
  tenant_id uuid NOT NULL,
  at timestamptz NOT NULL,
  actor text NOT NULL,
  key_id uuid,
  action text NOT NULL,
  subject text NOT NULL,
  detail text NOT NULL,
  request_id text,
  address text
);

CREATE INDEX audit_log_of_tenant ON audit_log (tenant_id, at, id);
CREATE INDEX audit_log_by_time ON audit_log (at, id);

CREATE FUNCTION everbeat_audit_log_keeps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'integrity_constraint_violation';
END
$$;

CREATE TRIGGER audit_log_keeps BEFORE UPDATE OR DELETE ON audit_log
FOR EACH ROW EXECUTE FUNCTION everbeat_audit_log_keeps();
CREATE TRIGGER audit_log_keeps_all BEFORE TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION everbeat_audit_log_keeps();

ALTER TABLE tasks
  ADD COLUMN fair_key text NOT NULL DEFAULT '',
  ADD COLUMN payload_ref text;
ALTER TABLE task_history
  ADD COLUMN fair_key text NOT NULL DEFAULT '',
  ADD COLUMN payload_ref text;
ALTER TABLE dead_letters
  ADD COLUMN fair_key text NOT NULL DEFAULT '',
  ADD COLUMN payload_ref text;

-- Claims take tasks from flows: (tenant, priority, fair key, type) of a queue, each in order of time. A loose index scan finds
-- the flows.
DROP INDEX tasks_ready;
CREATE INDEX tasks_ready ON tasks (queue, tenant_id, priority, fair_key, type, run_at, id) WHERE state = 'ready';
-- With the tenant, to count its running tasks. With the state, so that the planner can distinguish it from the index of all
-- tasks of a tenant.
DROP INDEX tasks_running;
CREATE INDEX tasks_running ON tasks (state, tenant_id) WHERE state = 'running';
-- A list of a tenant's tasks must not read the tasks of other tenants.
CREATE INDEX tasks_of_tenant ON tasks (tenant_id, id);
CREATE INDEX task_history_of_tenant ON task_history (tenant_id, id);
-- Finds the payloads of the blob store that are still in use.
CREATE INDEX tasks_payload_refs ON tasks (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX task_history_payload_refs ON task_history (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX dead_letters_payload_refs ON dead_letters (payload_ref) WHERE payload_ref IS NOT NULL;

-- Month tables are created and dropped with the privileges of the owner, so that the runtime role needs no DDL privileges.
CREATE FUNCTION everbeat_month_drop(parent text, child text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  is_pending boolean;
BEGIN
  IF parent NOT IN ('ticks', 'task_history', 'attempts', 'task_log') OR child !~ ('^' || parent || '_[0-9]{4}_[0-9]{2}$') THEN
    RAISE EXCEPTION '% is not a month of %', child, parent;
  END IF;
  SELECT inhdetachpending INTO is_pending FROM pg_inherits
  WHERE inhrelid = to_regclass(child) AND inhparent = to_regclass(parent);
  IF FOUND THEN
    EXECUTE format('ALTER TABLE %I DETACH PARTITION %I %s', parent, child, CASE WHEN is_pending THEN 'FINALIZE' ELSE '' END);
  END IF;
  EXECUTE format('DROP TABLE IF EXISTS %I', child);
END
$$;

ALTER FUNCTION everbeat_month_ensure(timestamptz) SECURITY DEFINER;

DO $$
BEGIN
  EXECUTE format('ALTER FUNCTION everbeat_month_ensure(timestamptz) SET search_path = %I, pg_temp', current_schema());
  EXECUTE format('ALTER FUNCTION everbeat_month_drop(text, text) SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION everbeat_month_ensure(timestamptz) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION everbeat_month_drop(text, text) FROM PUBLIC;
