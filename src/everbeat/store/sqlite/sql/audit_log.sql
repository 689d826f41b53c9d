-- fragment: audit_log_columns
-- All columns of the table.
-- returns: id uuid, tenant_id cached_uuid, at time, key_id uuid
id, tenant_id, at, actor, key_id, action, subject, detail, request_id, address

-- name: audit_log_insert
-- Insert an audit log entry, in the transaction of the change that it describes.
-- Differs from postgres: one row at a time, because a repeated execution needs no round trip.
INSERT INTO audit_log ({{audit_log_columns}})
VALUES ({{:audit_log_columns}});

-- name: audit_log_list
-- A tenant's audit log entries, newest first.
-- returns: {{audit_log_columns}}
SELECT {{audit_log_columns}} FROM audit_log
WHERE tenant_id = :tenant_id AND (at, id) < (:before_at, :before_id) AND at >= :from_at AND at < :to_at
  AND (:action IS NULL OR action = :action)
ORDER BY at DESC, id DESC LIMIT :limit;

-- name: audit_log_list_all
-- The audit log entries of all tenants, newest first; for operators.
-- returns: {{audit_log_columns}}
SELECT {{audit_log_columns}} FROM audit_log
WHERE (at, id) < (:before_at, :before_id) AND at >= :from_at AND at < :to_at
  AND (:action IS NULL OR action = :action)
ORDER BY at DESC, id DESC LIMIT :limit;

-- name: audit_log_prune
-- Delete a limited number of old entries. Entries of the last 30 days are kept in any case.
-- Differs from postgres: a row in audit_log_pruning permits the deletion.
DELETE FROM audit_log WHERE rowid IN (
  SELECT rowid FROM audit_log WHERE at < min(:before_at, (unixepoch() - 30 * 86400) * 1000000) ORDER BY at, id LIMIT :limit);

-- name: audit_log_prune_begin
-- Permit the deletion of old entries in this transaction.
INSERT INTO audit_log_pruning (started_at) VALUES (:now);

-- name: audit_log_prune_end
-- Forbid it again.
DELETE FROM audit_log_pruning;
