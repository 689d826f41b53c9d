-- name: calendar_list
-- The tenant's calendars in order of name.
SELECT name, revision, definition FROM calendars WHERE tenant_id = :tenant_id ORDER BY name;

-- name: calendar_exists
-- Whether the tenant has a calendar with this name.
-- returns: is_there bool
SELECT 1 AS is_there FROM calendars WHERE tenant_id = :tenant_id AND name = :name;

-- name: calendar_write
-- Create or replace a calendar.
INSERT INTO calendars (tenant_id, name, revision, definition, updated_at)
VALUES (:tenant_id, :name, :revision, :definition, :now)
ON CONFLICT (tenant_id, name) DO UPDATE SET revision = excluded.revision, definition = excluded.definition,
  updated_at = excluded.updated_at;

-- name: calendar_delete
-- Delete a calendar.
DELETE FROM calendars WHERE tenant_id = :tenant_id AND name = :name;
