-- name: key_find
-- The keys of these hashes or ids, in whatever state they are, and what the clock shows.
SELECT coalesce(:now::timestamptz, clock_timestamp()) AS moment, k.* FROM (SELECT 1) AS always LEFT JOIN (
  SELECT id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, last_used_at, revoked_at FROM api_keys
  WHERE hash = ANY(:hashes::bytea[])
  UNION
  SELECT id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, last_used_at, revoked_at FROM api_keys
  WHERE id = ANY(:ids::uuid[])
) AS k ON true;

-- name: key_exists
-- Whether there is any key that can be used.
SELECT EXISTS (
  SELECT 1 FROM api_keys
  WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > coalesce(:now::timestamptz, now()))) AS is_there;

-- name: key_lock
-- Who counts keys before changing them does so alone: two nodes that start together make one first key, and two who revoke the
-- last two keys of administrators do not both succeed.
SELECT pg_advisory_xact_lock(hashtext('everbeat_api_keys'));

-- name: key_create
-- Keep a key, of a tenant that is there; one that is known stays as it is.
INSERT INTO api_keys (id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at)
SELECT :id, t.id, :name, :hash, :hint, :scopes, :is_fleet, coalesce(:now::timestamptz, now()), :expires_at
FROM tenants AS t WHERE t.id = :tenant_id
ON CONFLICT (hash) DO NOTHING;

-- name: key_revoke
-- Revoke a key for good.
UPDATE api_keys SET revoked_at = coalesce(:now::timestamptz, now())
WHERE id = :id AND revoked_at IS NULL AND (:tenant_id::uuid IS NULL OR tenant_id = :tenant_id);

-- name: key_admins
-- How many keys can be used to manage tenants and keys.
SELECT count(*) AS count FROM api_keys
WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > coalesce(:now::timestamptz, now()))
  AND ' ' || scopes || ' ' LIKE '% admin %';

-- name: key_list
-- Keys of a tenant, or of all, in the order they were made.
SELECT id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, last_used_at, revoked_at FROM api_keys
WHERE id > :after AND (:tenant_id::uuid IS NULL OR tenant_id = :tenant_id)
ORDER BY id LIMIT :limit;

-- name: key_touch
-- Note that keys were used just now.
UPDATE api_keys SET last_used_at = coalesce(:now::timestamptz, now())
WHERE id = ANY(:ids::uuid[]) AND (last_used_at IS NULL OR last_used_at < coalesce(:now::timestamptz, now()));
