-- fragment: finding_columns
-- All columns of the table.
id, tenant_id, schedule_id, kind, scheduled_for, found_at, resolved_at, resolution, details

-- fragment: finding_matches
-- Whether a finding matches the filter of a list, and comes after the last one of the previous page.
(resolved_at IS NOT NULL) = :is_resolved AND id < :before AND (:kind::text IS NULL OR kind = :kind)
AND (:schedule_id::uuid IS NULL OR schedule_id = :schedule_id)
AND scheduled_for >= :from_at AND scheduled_for < :to_at

-- name: finding_record
-- Insert a finding. One that is known and open stays as it is. A resolved one is opened again, unless the new one is resolved.
INSERT INTO audit_findings AS f ({{finding_columns}})
VALUES (:id, :tenant_id, :schedule_id, :kind, :scheduled_for, :found_at, :resolved_at, :resolution, :details)
ON CONFLICT (schedule_id, kind, scheduled_for) DO UPDATE SET id = excluded.id, found_at = excluded.found_at, resolved_at = NULL,
  resolution = NULL, details = excluded.details
WHERE f.resolved_at IS NOT NULL AND excluded.resolved_at IS NULL
RETURNING {{finding_columns}};

-- name: finding_resolve
-- Resolve an open finding.
UPDATE audit_findings SET resolved_at = coalesce(:now::timestamptz, now()), resolution = :resolution
WHERE id = :id AND resolved_at IS NULL
RETURNING {{finding_columns}};

-- name: finding_list
-- Findings of a tenant and those of the cluster that match a filter, newest first.
SELECT {{finding_columns}} FROM (
  (SELECT * FROM audit_findings WHERE tenant_id = :tenant_id AND {{finding_matches}} ORDER BY id DESC LIMIT :limit)
  UNION ALL
  (SELECT * FROM audit_findings WHERE tenant_id IS NULL AND {{finding_matches}} ORDER BY id DESC LIMIT :limit)
) AS found ORDER BY id DESC LIMIT :limit;

-- name: finding_list_all
-- Findings of all tenants and of the cluster that match a filter, newest first.
SELECT {{finding_columns}} FROM audit_findings WHERE {{finding_matches}} ORDER BY id DESC LIMIT :limit;

-- name: finding_open
-- Open findings in order of id, after a given one.
SELECT {{finding_columns}} FROM audit_findings WHERE resolved_at IS NULL AND id > :after ORDER BY id LIMIT :limit;

-- name: finding_count
-- The number of open findings by kind, up to a limit in all.
SELECT kind, count(*) AS count FROM (SELECT kind FROM audit_findings WHERE resolved_at IS NULL LIMIT :limit) AS open GROUP BY kind;

-- name: finding_prune
-- Delete findings that were found long ago.
DELETE FROM audit_findings WHERE id IN (
  SELECT id FROM audit_findings WHERE found_at < coalesce(:now::timestamptz, now()) - make_interval(secs => :age_seconds) LIMIT :limit);
