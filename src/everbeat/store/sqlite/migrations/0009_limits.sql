-- A lowest priority number per tenant, an index for the quota max_ready, and a limited retention of the audit log. Processes of
-- the previous version can keep running.

ALTER TABLE tenants ADD COLUMN min_priority INTEGER CHECK (min_priority >= 0);

-- Finds the delayed tasks of a tenant that are due soon.
CREATE INDEX tasks_scheduled_of_tenant ON tasks (tenant_id, run_at) WHERE state = 'scheduled';

-- The pruner inserts a row before it deletes old entries of the audit log, and removes it in the same transaction.
CREATE TABLE audit_log_pruning (started_at INTEGER NOT NULL) STRICT;

-- INSERT OR REPLACE deletes rows without calling the trigger for deletions.
CREATE TRIGGER audit_log_keeps_old BEFORE INSERT ON audit_log
WHEN EXISTS (SELECT 1 FROM audit_log WHERE id = NEW.id OR rowid = NEW.rowid) BEGIN
  SELECT raise(ABORT, 'the audit log is append-only');
END;

-- Nobody can delete entries of the last 30 days.
DROP TRIGGER audit_log_keeps_all;
CREATE TRIGGER audit_log_keeps_all BEFORE DELETE ON audit_log
WHEN OLD.at > (unixepoch() - 30 * 86400) * 1000000 OR NOT EXISTS (SELECT 1 FROM audit_log_pruning) BEGIN
  SELECT raise(ABORT, 'the audit log is append-only');
END;
