-- fragment: endpoint_columns
-- All columns of the table.
-- returns: tenant_id cached_uuid, old_secret_until time, created_at time, updated_at time
tenant_id, name, url, method, headers, max_concurrent, rate_per_second, secret, old_secret, old_secret_until, revision,
created_at, updated_at

-- fragment: endpoint_edited_columns
-- The columns that a change writes.
url, method, headers, max_concurrent, rate_per_second, secret, old_secret, old_secret_until, revision, updated_at

-- name: endpoint_list
-- The tenant's endpoints in order of name, after a given name.
-- returns: {{endpoint_columns}}
SELECT {{endpoint_columns}} FROM endpoints WHERE tenant_id = :tenant_id AND name > :after_name ORDER BY name LIMIT :limit;

-- name: endpoint_find
-- Endpoints by tenant and name.
-- returns: {{endpoint_columns}}
SELECT {{e.endpoint_columns}} FROM json_each(:tenant_ids) AS t
CROSS JOIN json_each(:names) AS n ON n.key = t.key
CROSS JOIN endpoints AS e ON e.tenant_id = unhex(t.value) AND e.name = n.value;

-- name: endpoint_insert
-- Insert an endpoint. If its name is taken, it is not inserted.
INSERT INTO endpoints ({{endpoint_columns}}) VALUES ({{:endpoint_columns}}) ON CONFLICT (tenant_id, name) DO NOTHING;

-- name: endpoint_replace
-- Replace an endpoint, only if its revision is as expected.
UPDATE endpoints SET ({{endpoint_edited_columns}}) = ({{:endpoint_edited_columns}})
WHERE tenant_id = :tenant_id AND name = :name AND revision = :expected;

-- name: endpoint_delete
-- Delete an endpoint.
DELETE FROM endpoints WHERE tenant_id = :tenant_id AND name = :name;

-- name: server_secret_insert
-- Insert a secret of the server, unless there is one with this name.
INSERT INTO server_secrets (name, secret, created_at) VALUES (:name, :secret, :now) ON CONFLICT (name) DO NOTHING;

-- name: server_secret_find
-- A secret of the server.
SELECT secret FROM server_secrets WHERE name = :name;
