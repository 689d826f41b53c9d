-- fragment: key_columns
-- The columns of a key in queries.
-- returns: id uuid, tenant_id cached_uuid, hash bytes, is_fleet bool, created_at time, expires_at time, last_used_at time
-- returns: revoked_at time, session_of uuid
id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, last_used_at, revoked_at, session_of

-- name: key_find
-- The keys with these hashes or ids, including expired and revoked ones.
-- returns: {{key_columns}}
SELECT {{key_columns}} FROM api_keys
WHERE hash IN (SELECT unhex(value) FROM json_each(:hashes)) OR id IN (SELECT unhex(value) FROM json_each(:ids));

-- name: key_exists
-- Whether any usable key exists, other than those of browser sessions.
-- returns: is_there bool
SELECT EXISTS (
  SELECT 1 FROM api_keys
  WHERE session_of IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)) AS is_there;

-- name: key_create
-- Insert a key, if the tenant exists and no key has the same hash.
INSERT INTO api_keys (id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, session_of)
SELECT :id, t.id, :name, :hash, :hint, :scopes, :is_fleet, :now, :expires_at, :session_of
FROM tenants AS t WHERE t.id = :tenant_id
ON CONFLICT (hash) DO NOTHING;

-- name: key_revoke
-- Revoke a key that is not revoked yet, and its browser sessions.
UPDATE api_keys SET revoked_at = :now
WHERE (id = :id OR session_of = :id) AND revoked_at IS NULL AND (:tenant_id IS NULL OR tenant_id = :tenant_id);

-- name: key_admins
-- The number of usable keys with the scope admin, and of those that do not expire, without those of browser sessions.
SELECT count(*) AS usable, count(*) FILTER (WHERE expires_at IS NULL) AS lasting FROM api_keys
WHERE session_of IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now) AND ' ' || scopes || ' ' LIKE '% admin %';

-- name: key_list
-- Keys of a tenant, or of all, in the order of their creation.
-- returns: {{key_columns}}
SELECT {{key_columns}} FROM api_keys
WHERE id > :after AND session_of IS NULL AND (:tenant_id IS NULL OR tenant_id = :tenant_id)
ORDER BY id LIMIT :limit;

-- name: key_touch
-- Record that keys have just been used.
UPDATE api_keys SET last_used_at = :now
WHERE id IN (SELECT unhex(value) FROM json_each(:ids)) AND (last_used_at IS NULL OR last_used_at < :now);

-- name: session_prune
-- Delete browser sessions that have expired.
DELETE FROM api_keys WHERE id IN (
  SELECT id FROM api_keys WHERE session_of IS NOT NULL AND expires_at < :now LIMIT :limit);
