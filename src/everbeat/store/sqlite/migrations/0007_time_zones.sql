-- More policies for DST gaps, ticks that a change of the tz database moved, and the versions of time zones with which next ticks
-- are computed. Nodes of the previous version can keep running; they do not write the new values.
-- Differs from postgres: SQLite cannot change a CHECK constraint. Its text in the schema is replaced instead, as the manual of
-- ALTER TABLE describes it for changes that do not affect the content of a table.

PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'CHECK (dst_gap IN (''after'', ''skip''))',
  'CHECK (dst_gap IN (''after'', ''shift'', ''skip''))') WHERE type = 'table' AND name = 'schedules';
UPDATE sqlite_schema SET sql = replace(sql,
  'CHECK (reason IN (''overlap'', ''misfire'', ''paused'', ''calendar'', ''dst_gap'', ''quota'', ''ended''))',
  'CHECK (reason IN (''overlap'', ''misfire'', ''paused'', ''calendar'', ''dst_gap'', ''zone_changed'', ''quota'', ''ended''))')
  WHERE type = 'table' AND name = 'ticks';
PRAGMA writable_schema = RESET;

ALTER TABLE schedules ADD COLUMN moved_tick_at INTEGER;

CREATE TABLE time_zones (
  name TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  since INTEGER NOT NULL,
  PRIMARY KEY (name, fingerprint)
) STRICT, WITHOUT ROWID;
