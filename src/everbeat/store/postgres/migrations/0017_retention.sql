-- Retention: a shorter retention of a tenant, months that are archived before they are removed, and indexes for rows that had no
-- retention. Nodes of the previous version can keep running.
-- Not a column of tenants, because nodes of the previous version read all columns of that table.

CREATE TABLE tenant_retention (
  tenant_id uuid PRIMARY KEY REFERENCES tenants (id),
  retention_days double precision CHECK (retention_days > 0)
);

-- A month of a table can have several segments: rows can be written to a month after it was archived and removed.
CREATE TABLE archived_months (
  table_name text NOT NULL,
  month text NOT NULL,
  segment integer NOT NULL,
  claim uuid NOT NULL,
  row_count bigint,
  first_at timestamptz,
  last_at timestamptz,
  file text,
  file_bytes bigint,
  recorded_until timestamptz NOT NULL,
  started_at timestamptz NOT NULL,
  archived_at timestamptz,
  removed_at timestamptz,
  PRIMARY KEY (table_name, month, segment)
);

CREATE INDEX past_rules_until ON past_rules (until);
CREATE INDEX dead_letters_by_time ON dead_letters (died_at);

CREATE OR REPLACE FUNCTION everbeat_month_drop(parent text, child text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  is_pending boolean;
BEGIN
  IF parent NOT IN ('ticks', 'task_history', 'attempts', 'task_log')
      OR child !~ ('^' || parent || '_[0-9]{4}_[0-9]{2}(_detached)?$') THEN
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

-- Detach a month and give it another name, so that the month can be created again for late rows, with the privileges of the owner.
CREATE FUNCTION everbeat_month_detach(parent text, child text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
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
  EXECUTE format('ALTER TABLE %I RENAME TO %I', child, child || '_detached');
  EXECUTE format('GRANT SELECT ON %I TO %I', child || '_detached', session_user);
END
$$;

DO $$
BEGIN
  EXECUTE format('ALTER FUNCTION everbeat_month_drop(text, text) SET search_path = %I, pg_temp', current_schema());
  EXECUTE format('ALTER FUNCTION everbeat_month_detach(text, text) SET search_path = %I, pg_temp', current_schema());
END
$$;

REVOKE EXECUTE ON FUNCTION everbeat_month_detach(text, text) FROM PUBLIC;
