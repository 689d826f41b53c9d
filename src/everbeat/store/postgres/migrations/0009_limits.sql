-- A lowest priority number per tenant, an index for the quota max_ready, and a limited retention of the audit log. Nodes of the
-- previous version can keep running.

ALTER TABLE tenants ADD COLUMN min_priority integer CHECK (min_priority >= 0);

-- Finds the delayed tasks of a tenant that are due soon.
CREATE INDEX tasks_scheduled_of_tenant ON tasks (tenant_id, run_at) WHERE state = 'scheduled';

-- Entries are deleted by everbeat_audit_log_prune only, and nobody can delete entries of the last 30 days.
CREATE OR REPLACE FUNCTION everbeat_audit_log_keeps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF OLD.at < now() - interval '30 days' AND current_setting('everbeat.audit_log_pruning', true) = 'on' THEN
      RETURN OLD;
    END IF;
  END IF;
  RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'integrity_constraint_violation';
END
$$;

-- With the privileges of the owner, so that the runtime role needs no DELETE privilege on the audit log.
CREATE FUNCTION everbeat_audit_log_prune(before_at timestamptz, max_count integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  deleted bigint;
BEGIN
  PERFORM set_config('everbeat.audit_log_pruning', 'on', true);
  DELETE FROM audit_log WHERE id IN (
    SELECT a.id FROM audit_log AS a WHERE a.at < least(before_at, now() - interval '30 days') ORDER BY a.at, a.id LIMIT max_count);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  PERFORM set_config('everbeat.audit_log_pruning', '', true);
  RETURN deleted;
END
$$;

DO $$
BEGIN
  EXECUTE format(
    'ALTER FUNCTION everbeat_audit_log_prune(timestamptz, integer) SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION everbeat_audit_log_prune(timestamptz, integer) FROM PUBLIC;
