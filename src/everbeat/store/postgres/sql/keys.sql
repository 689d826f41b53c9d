-- fragment: key_columns
-- The columns of a key in queries.
id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, last_used_at, revoked_at, session_of

-- name: key_find
-- The keys with these hashes or ids, including expired and revoked ones, and the current time.
SELECT coalesce(:now::timestamptz, clock_timestamp()) AS moment, k.* FROM (SELECT 1) AS always LEFT JOIN (
  SELECT {{key_columns}} FROM api_keys
  WHERE hash = ANY(:hashes::bytea[])
  UNION
  SELECT {{key_columns}} FROM api_keys
  WHERE id = ANY(:ids::uuid[])
) AS k ON true;

-- name: key_exists
-- Whether any usable key exists, other than those of browser sessions.
SELECT EXISTS (
  SELECT 1 FROM api_keys
  WHERE session_of IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > coalesce(:now::timestamptz, now()))) AS is_there;

-- name: key_lock
-- Serialize transactions that count keys before they change them: nodes that start together create only one first key, and two
-- requests that revoke the last two admin keys do not both succeed.
SELECT pg_advisory_xact_lock(hashtext('everbeat_api_keys'));

-- name: key_create
-- Insert a key, if the tenant exists and no key has the same hash.
INSERT INTO api_keys (id, tenant_id, name, hash, hint, scopes, is_fleet, created_at, expires_at, session_of)
SELECT :id, t.id, :name, :hash, :hint, :scopes, :is_fleet, coalesce(:now::timestamptz, now()), :expires_at, :session_of::uuid
FROM tenants AS t WHERE t.id = :tenant_id
ON CONFLICT (hash) DO NOTHING;

-- name: key_revoke
-- Revoke a key that is not revoked yet, and its browser sessions.
UPDATE api_keys SET revoked_at = coalesce(:now::timestamptz, now())
WHERE (id = :id OR session_of = :id) AND revoked_at IS NULL AND (:tenant_id::uuid IS NULL OR tenant_id = :tenant_id);

-- name: key_admins
-- The number of usable keys with the scope admin, and of those that do not expire, without those of browser sessions.
SELECT count(*) AS usable, count(*) FILTER (WHERE expires_at IS NULL) AS lasting FROM api_keys
WHERE session_of IS NULL AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > coalesce(:now::timestamptz, now()))
  AND ' ' || scopes || ' ' LIKE '% admin %';

-- name: key_list
-- Keys of a tenant, or of all, in the order of their creation.
SELECT {{key_columns}} FROM api_keys
WHERE id > :after AND session_of IS NULL AND (:tenant_id::uuid IS NULL OR tenant_id = :tenant_id)
ORDER BY id LIMIT :limit;

-- name: key_touch
-- Record that keys have just been used. A locked key is skipped: the time is for information only.
WITH used AS MATERIALIZED (SELECT id FROM api_keys WHERE id = ANY(:ids::uuid[]) FOR NO KEY UPDATE SKIP LOCKED)
UPDATE api_keys AS k SET last_used_at = coalesce(:now::timestamptz, now())
FROM used AS u WHERE k.id = u.id AND (k.last_used_at IS NULL OR k.last_used_at < coalesce(:now::timestamptz, now()));

-- name: session_prune
-- Delete browser sessions that have expired.
DELETE FROM api_keys WHERE id IN (
  SELECT id FROM api_keys WHERE session_of IS NOT NULL AND expires_at < coalesce(:now::timestamptz, now()) LIMIT :limit
  FOR UPDATE SKIP LOCKED);
