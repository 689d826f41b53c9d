-- Hooks: the tasks that are written when a task ends or ticks are missed, in the same transaction. Processes of the previous
-- version can keep running; the tasks that they write have no hooks.
-- Differs from postgres: the text of a CHECK constraint is replaced, as in 0007_time_zones.sql. The partition of a task is not
-- used on SQLite, so it is any number.

PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql,
  'CHECK (origin IN (''submit'', ''tick'', ''trigger'', ''backfill'', ''replay''))',
  'CHECK (origin IN (''submit'', ''tick'', ''trigger'', ''backfill'', ''replay'', ''hook''))')
  WHERE type = 'table' AND name = 'tasks';
PRAGMA writable_schema = RESET;

ALTER TABLE schedules ADD COLUMN hooks TEXT;
ALTER TABLE tasks ADD COLUMN hooks TEXT;
ALTER TABLE task_history ADD COLUMN hooks TEXT;
ALTER TABLE dead_letters ADD COLUMN hooks TEXT;

CREATE TRIGGER task_history_hooks AFTER INSERT ON task_history
WHEN NEW.hooks IS NOT NULL AND NEW.state IN ('completed', 'dead')
BEGIN
  INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, priority, max_attempts, retry,
    timeout_seconds, labels, fair_key, run_at, state, created_at)
  SELECT unhex(printf('%012x', NEW.finished_at / 1000) || '7' || substr(hex(randomblob(2)), 1, 3) || '8' || substr(hex(randomblob(8)), 1, 15)), NEW.tenant_id,
    abs(random()) % 256, h.value ->> 'queue', coalesce(h.value ->> 'type', NEW.type), h.value ->> 'target',
    json_object('hook', h.value ->> 'on',
      'task_id', substr(lower(hex(NEW.id)), 1, 8) || '-' || substr(lower(hex(NEW.id)), 9, 4) || '-' || substr(lower(hex(NEW.id)), 13, 4) || '-' || substr(lower(hex(NEW.id)), 17, 4) || '-'
        || substr(lower(hex(NEW.id)), 21),
      'type', NEW.type, 'queue', NEW.queue, 'state', NEW.state, 'attempt', NEW.attempt, 'origin', NEW.origin,
      'schedule', NEW.schedule_name,
      'schedule_id', CASE WHEN NEW.schedule_id IS NOT NULL THEN
        substr(lower(hex(NEW.schedule_id)), 1, 8) || '-' || substr(lower(hex(NEW.schedule_id)), 9, 4) || '-' || substr(lower(hex(NEW.schedule_id)), 13, 4) || '-' || substr(lower(hex(NEW.schedule_id)), 17, 4) || '-'
        || substr(lower(hex(NEW.schedule_id)), 21) END,
      'scheduled_for', strftime('%Y-%m-%dT%H:%M:%S', NEW.scheduled_for / 1000000, 'unixepoch') || printf('.%06dZ', NEW.scheduled_for % 1000000),
      'finished_at', strftime('%Y-%m-%dT%H:%M:%S', NEW.finished_at / 1000000, 'unixepoch') || printf('.%06dZ', NEW.finished_at % 1000000),
      'reason', NEW.reason, 'error', json(NEW.error)),
    'hook', NEW.priority, 10, '{}', 3600,
    json_object('hook', h.value ->> 'on',
      'about', substr(lower(hex(NEW.id)), 1, 8) || '-' || substr(lower(hex(NEW.id)), 9, 4) || '-' || substr(lower(hex(NEW.id)), 13, 4) || '-' || substr(lower(hex(NEW.id)), 17, 4) || '-'
        || substr(lower(hex(NEW.id)), 21)),
    h.value ->> 'fair_key', NEW.finished_at, 'ready', NEW.finished_at
  FROM json_each(NEW.hooks) AS h
  WHERE h.value ->> 'on' = iif(NEW.state = 'completed', 'on_success', 'on_failure');
END;

CREATE TRIGGER ticks_hooks AFTER INSERT ON ticks
WHEN NEW.reason = 'misfire'
BEGIN
  INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, priority, max_attempts, retry,
    timeout_seconds, labels, fair_key, run_at, state, created_at)
  SELECT unhex(printf('%012x', NEW.fired_at / 1000) || '7' || substr(hex(randomblob(2)), 1, 3) || '8' || substr(hex(randomblob(8)), 1, 15)), s.tenant_id,
    abs(random()) % 256, h.value ->> 'queue', coalesce(h.value ->> 'type', s.task_type), h.value ->> 'target',
    json_object('hook', 'on_missed', 'schedule', s.name,
      'schedule_id', substr(lower(hex(s.id)), 1, 8) || '-' || substr(lower(hex(s.id)), 9, 4) || '-' || substr(lower(hex(s.id)), 13, 4) || '-' || substr(lower(hex(s.id)), 17, 4) || '-'
        || substr(lower(hex(s.id)), 21),
      'scheduled_for', strftime('%Y-%m-%dT%H:%M:%S', NEW.scheduled_for / 1000000, 'unixepoch') || printf('.%06dZ', NEW.scheduled_for % 1000000),
      'until', strftime('%Y-%m-%dT%H:%M:%S', NEW.until / 1000000, 'unixepoch') || printf('.%06dZ', NEW.until % 1000000),
      'count', NEW.count, 'reason', NEW.reason),
    'hook', s.priority, 10, '{}', 3600,
    json_object('hook', 'on_missed',
      'about', substr(lower(hex(s.id)), 1, 8) || '-' || substr(lower(hex(s.id)), 9, 4) || '-' || substr(lower(hex(s.id)), 13, 4) || '-' || substr(lower(hex(s.id)), 17, 4) || '-'
        || substr(lower(hex(s.id)), 21)),
    h.value ->> 'fair_key', NEW.fired_at, 'ready', NEW.fired_at
  FROM schedules AS s CROSS JOIN json_each(s.hooks) AS h
  WHERE s.id = NEW.schedule_id AND s.hooks IS NOT NULL AND h.value ->> 'on' = 'on_missed';
END;
