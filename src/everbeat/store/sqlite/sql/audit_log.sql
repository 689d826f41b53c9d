-- name: audit_log_insert
-- One line of the audit trail, in the transaction of what it tells of.
-- Differs from postgres: one row at a time, because the driver repeats it without a round trip.
INSERT INTO audit_log (id, tenant_id, at, actor, key_id, action, subject, detail, request_id, address)
VALUES (:id, :tenant_id, :at, :actor, :key_id, :action, :subject, :detail, :request_id, :address);

-- name: audit_log_list
-- A tenant's lines of the audit trail, newest first.
SELECT id, tenant_id, at, actor, key_id, action, subject, detail, request_id, address FROM audit_log
WHERE tenant_id = :tenant_id AND (at, id) < (:before_at, :before_id) AND at >= :from_at AND at < :to_at
  AND (:action IS NULL OR action = :action)
ORDER BY at DESC, id DESC LIMIT :limit;

-- name: audit_log_list_all
-- Everybody's lines of the audit trail, newest first: for operators.
SELECT id, tenant_id, at, actor, key_id, action, subject, detail, request_id, address FROM audit_log
WHERE (at, id) < (:before_at, :before_id) AND at >= :from_at AND at < :to_at
  AND (:action IS NULL OR action = :action)
ORDER BY at DESC, id DESC LIMIT :limit;
