-- More policies for DST gaps, ticks that a change of the tz database moved, and the versions of time zones with which next ticks
-- are computed. Nodes of the previous version can keep running; they do not write the new values.

ALTER TABLE schedules DROP CONSTRAINT schedules_dst_gap_check,
  ADD CONSTRAINT schedules_dst_gap_check CHECK (dst_gap IN ('after', 'shift', 'skip'));
ALTER TABLE ticks DROP CONSTRAINT ticks_reason_check,
  ADD CONSTRAINT ticks_reason_check
    CHECK (reason IN ('overlap', 'misfire', 'paused', 'calendar', 'dst_gap', 'zone_changed', 'quota', 'ended'));

ALTER TABLE schedules ADD COLUMN moved_tick_at timestamptz;

CREATE TABLE time_zones (
  name text NOT NULL,
  fingerprint text NOT NULL,
  since timestamptz NOT NULL,
  PRIMARY KEY (name, fingerprint)
);
