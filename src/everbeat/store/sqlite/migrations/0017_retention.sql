-- Retention: a shorter retention of a tenant, months that are archived before they are removed, and indexes for rows that had no
-- retention. Processes of the previous version can keep running.
-- Not a column of tenants, because processes of the previous version read all columns of that table.

CREATE TABLE tenant_retention (
  tenant_id BLOB PRIMARY KEY REFERENCES tenants (id),
  retention_days REAL CHECK (retention_days > 0)
) STRICT, WITHOUT ROWID;

-- A month of a table can have several segments: rows can be written to a month after it was archived and removed.
CREATE TABLE archived_months (
  table_name TEXT NOT NULL,
  month TEXT NOT NULL,
  segment INTEGER NOT NULL,
  claim BLOB NOT NULL,
  row_count INTEGER,
  first_at INTEGER,
  last_at INTEGER,
  file TEXT,
  file_bytes INTEGER,
  recorded_until INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  archived_at INTEGER,
  removed_at INTEGER,
  PRIMARY KEY (table_name, month, segment)
) STRICT, WITHOUT ROWID;

CREATE INDEX past_rules_until ON past_rules (until);
CREATE INDEX dead_letters_by_time ON dead_letters (died_at);
