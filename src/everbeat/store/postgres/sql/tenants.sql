-- name: tenant_list
-- Tenants by name, after a given one.
SELECT * FROM tenants WHERE name > :after_name ORDER BY name LIMIT :limit;

-- name: tenant_find
-- Tenants of these ids or names.
SELECT * FROM tenants WHERE id = ANY(:ids::uuid[])
UNION
SELECT * FROM tenants WHERE name = ANY(:names::text[]);

-- name: tenant_insert
-- A new tenant; a name or id already taken leaves it out.
INSERT INTO tenants (id, name, weight, max_schedules, max_ready, max_running, submits_per_second, max_payload_bytes, revision,
  created_at, updated_at)
VALUES (:id, :name, :weight, :max_schedules, :max_ready, :max_running, :submits_per_second, :max_payload_bytes, :revision,
  :created_at, :updated_at)
ON CONFLICT DO NOTHING;

-- name: tenant_replace
-- A tenant rewritten, only if it is still at the revision that the writer saw.
UPDATE tenants SET name = :name, weight = :weight, max_schedules = :max_schedules, max_ready = :max_ready,
  max_running = :max_running, submits_per_second = :submits_per_second, max_payload_bytes = :max_payload_bytes,
  revision = :revision, updated_at = :updated_at
WHERE id = :id AND revision = :expected;

-- name: tenant_lock
-- Keep a tenant as it is until its quota is judged; keys of it may be written beside.
SELECT id FROM tenants WHERE id = :tenant_id FOR NO KEY UPDATE;

-- name: schedule_quota_count
-- How many schedules a tenant has, no further than its quota.
SELECT count(*) AS count FROM (SELECT 1 FROM schedules WHERE tenant_id = :tenant_id LIMIT :max_schedules) AS counted;
