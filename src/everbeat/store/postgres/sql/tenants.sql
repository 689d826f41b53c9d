-- name: tenant_list
-- Tenants in order of name, after a given name.
SELECT * FROM tenants WHERE name > :after_name ORDER BY name LIMIT :limit;

-- name: tenant_find
-- Tenants with these ids or names.
SELECT * FROM tenants WHERE id = ANY(:ids::uuid[])
UNION
SELECT * FROM tenants WHERE name = ANY(:names::text[]);

-- name: tenant_insert
-- Insert a tenant, if neither its id nor its name is taken.
INSERT INTO tenants (id, name, weight, max_schedules, max_ready, max_running, submits_per_second, max_payload_bytes,
  min_priority, revision, created_at, updated_at)
VALUES (:id, :name, :weight, :max_schedules, :max_ready, :max_running, :submits_per_second, :max_payload_bytes,
  :min_priority, :revision, :created_at, :updated_at)
ON CONFLICT DO NOTHING;

-- name: tenant_replace
-- Replace a tenant, only if it has the expected revision.
UPDATE tenants SET name = :name, weight = :weight, max_schedules = :max_schedules, max_ready = :max_ready,
  max_running = :max_running, submits_per_second = :submits_per_second, max_payload_bytes = :max_payload_bytes,
  min_priority = :min_priority, revision = :revision, updated_at = :updated_at
WHERE id = :id AND revision = :expected;

-- name: tenant_lock
-- Lock a tenant while its quota is checked. This lock mode does not block inserts of rows that reference the tenant.
SELECT id FROM tenants WHERE id = :tenant_id FOR NO KEY UPDATE;

-- name: schedule_quota_count
-- The number of a tenant's schedules, counted up to the quota.
SELECT count(*) AS count FROM (SELECT 1 FROM schedules WHERE tenant_id = :tenant_id LIMIT :max_schedules) AS counted;
