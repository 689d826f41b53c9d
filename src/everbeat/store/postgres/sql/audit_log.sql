-- fragment: audit_log_columns
-- All columns of the table.
id, tenant_id, at, actor, key_id, action, subject, detail, request_id, address

-- name: audit_log_insert
-- Insert audit log entries, in the transaction of the change that they describe.
INSERT INTO audit_log ({{audit_log_columns}})
SELECT e.id, e.tenant_id, coalesce(:now::timestamptz, now()), e.actor, e.key_id, e.action, e.subject, e.detail, e.request_id,
  e.address
FROM unnest(:ids::uuid[], :tenant_ids::uuid[], :actors::text[], :key_ids::uuid[], :actions::text[], :subjects::text[],
  :details::text[], :request_ids::text[], :addresses::text[])
  AS e(id, tenant_id, actor, key_id, action, subject, detail, request_id, address);

-- name: audit_log_list
-- A tenant's audit log entries, newest first.
SELECT {{audit_log_columns}} FROM audit_log
WHERE tenant_id = :tenant_id AND (at, id) < (:before_at::timestamptz, :before_id::uuid) AND at >= :from_at AND at < :to_at
  AND (:action::text IS NULL OR action = :action)
ORDER BY at DESC, id DESC LIMIT :limit;

-- name: audit_log_list_all
-- The audit log entries of all tenants, newest first; for operators.
SELECT {{audit_log_columns}} FROM audit_log
WHERE (at, id) < (:before_at::timestamptz, :before_id::uuid) AND at >= :from_at AND at < :to_at
  AND (:action::text IS NULL OR action = :action)
ORDER BY at DESC, id DESC LIMIT :limit;

-- name: audit_log_prune
-- Delete a limited number of old entries, with the privileges of the table owner.
SELECT everbeat_audit_log_prune(:before_at::timestamptz, :limit::integer) AS count;
