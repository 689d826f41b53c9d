-- Hooks: the tasks that are written when a task ends or ticks are missed, in the same transaction. Nodes of the previous version can
-- keep running; the tasks that they write have no hooks.

ALTER TABLE schedules ADD COLUMN hooks text;
ALTER TABLE tasks ADD COLUMN hooks text;
ALTER TABLE task_history ADD COLUMN hooks text;
ALTER TABLE dead_letters ADD COLUMN hooks text;

ALTER TABLE tasks DROP CONSTRAINT tasks_origin_check;
ALTER TABLE tasks ADD CONSTRAINT tasks_origin_check
  CHECK (origin IN ('submit', 'tick', 'trigger', 'backfill', 'replay', 'hook')) NOT VALID;

CREATE FUNCTION everbeat_time_text(at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- Write the tasks of the hooks for an event. OFFSET 0 keeps the ids of several hooks apart.
CREATE FUNCTION everbeat_send_hooks(
  hooks text, event text, tenant uuid, type text, about uuid, priority integer, payload jsonb, at timestamptz
) RETURNS void LANGUAGE sql AS $$
  INSERT INTO tasks (id, tenant_id, partition, queue, type, target, payload, origin, priority, max_attempts, retry,
    timeout_seconds, labels, fair_key, run_at, state, created_at)
  SELECT h.id, tenant, everbeat_partition(h.id), h.hook ->> 'queue', coalesce(h.hook ->> 'type', type), h.hook ->> 'target',
    payload::text, 'hook', priority, 10, '{}', 3600, jsonb_build_object('hook', event, 'about', about)::text,
    h.hook ->> 'fair_key', at, 'ready', at
  FROM (SELECT everbeat_uuid7() AS id, one.hook FROM jsonb_array_elements(hooks::jsonb) AS one(hook) OFFSET 0) AS h
  WHERE h.hook ->> 'on' = event
$$;

CREATE FUNCTION everbeat_send_task_hooks() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  event text := CASE NEW.state WHEN 'completed' THEN 'on_success' ELSE 'on_failure' END;
BEGIN
  PERFORM everbeat_send_hooks(NEW.hooks, event, NEW.tenant_id, NEW.type, NEW.id, NEW.priority, jsonb_build_object(
    'hook', event, 'task_id', NEW.id, 'type', NEW.type, 'queue', NEW.queue, 'state', NEW.state, 'attempt', NEW.attempt,
    'origin', NEW.origin, 'schedule', NEW.schedule_name, 'schedule_id', NEW.schedule_id,
    'scheduled_for', everbeat_time_text(NEW.scheduled_for), 'finished_at', everbeat_time_text(NEW.finished_at),
    'reason', NEW.reason, 'error', NEW.error::jsonb), NEW.finished_at);
  RETURN NULL;
END
$$;

CREATE TRIGGER task_history_hooks AFTER INSERT ON task_history FOR EACH ROW
WHEN (NEW.hooks IS NOT NULL AND NEW.state IN ('completed', 'dead')) EXECUTE FUNCTION everbeat_send_task_hooks();

CREATE FUNCTION everbeat_send_missed_hooks() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  owner schedules%ROWTYPE;
BEGIN
  SELECT * INTO owner FROM schedules AS s WHERE s.id = NEW.schedule_id AND s.hooks IS NOT NULL;
  IF FOUND THEN
    PERFORM everbeat_send_hooks(owner.hooks, 'on_missed', owner.tenant_id, owner.task_type, owner.id, owner.priority,
      jsonb_build_object('hook', 'on_missed', 'schedule', owner.name, 'schedule_id', owner.id,
        'scheduled_for', everbeat_time_text(NEW.scheduled_for), 'until', everbeat_time_text(NEW.until), 'count', NEW.count,
        'reason', NEW.reason), NEW.fired_at);
  END IF;
  RETURN NULL;
END
$$;

CREATE TRIGGER ticks_hooks AFTER INSERT ON ticks FOR EACH ROW WHEN (NEW.reason = 'misfire')
EXECUTE FUNCTION everbeat_send_missed_hooks();
