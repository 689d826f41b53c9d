-- fragment: tenant_columns
-- The columns of a tenant. Named, because a newer version may add columns.
id, name, weight, max_schedules, max_ready, max_running, submits_per_second, max_payload_bytes, min_priority, revision, created_at, updated_at

-- name: tenant_list
-- Tenants in order of name, after a given name.
-- returns: id uuid, created_at time, updated_at time
SELECT {{t.tenant_columns}}, r.retention_days FROM tenants AS t LEFT JOIN tenant_retention AS r ON r.tenant_id = t.id
WHERE t.name > :after_name ORDER BY t.name LIMIT :limit;

-- name: tenant_find
-- Tenants with these ids or names.
-- returns: id uuid, created_at time, updated_at time
SELECT {{t.tenant_columns}}, r.retention_days FROM tenants AS t LEFT JOIN tenant_retention AS r ON r.tenant_id = t.id
WHERE t.id IN (SELECT unhex(value) FROM json_each(:ids))
UNION
SELECT {{t.tenant_columns}}, r.retention_days FROM tenants AS t LEFT JOIN tenant_retention AS r ON r.tenant_id = t.id
WHERE t.name IN (SELECT value FROM json_each(:names));

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

-- name: tenant_retention_write
-- Write the retention of a tenant; null if it has none of its own.
INSERT INTO tenant_retention (tenant_id, retention_days) VALUES (:id, :retention_days)
ON CONFLICT (tenant_id) DO UPDATE SET retention_days = excluded.retention_days;

-- name: schedule_quota_count
-- The number of a tenant's schedules and checks, each counted up to the quota.
SELECT (SELECT count(*) FROM (SELECT 1 FROM schedules WHERE tenant_id = :tenant_id LIMIT :max_schedules) AS s)
  + (SELECT count(*) FROM (SELECT 1 FROM checks WHERE tenant_id = :tenant_id LIMIT :max_schedules) AS c) AS count;
