-- Deliveries: reserved queues, destinations as fair keys, and the response of each attempt. Nodes of the previous version can keep
-- running.

ALTER TABLE schedules ADD COLUMN fair_key TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN response TEXT;
ALTER TABLE task_history ADD COLUMN response TEXT;
ALTER TABLE attempts ADD COLUMN response TEXT;
ALTER TABLE nodes ADD COLUMN deliveries TEXT;

-- Before, the tasks of a target were in a queue with the name of its kind, and nothing delivered them. The inner expressions are
-- the URL without its scheme, and the part before the first slash.
UPDATE schedules SET queue = 'everbeat:' || target_kind,
  fair_key = coalesce((
    SELECT lower(substr(rest, 1, instr(rest, '/') - 1))
    FROM (SELECT substr(target ->> 'url', instr(target ->> 'url', '//') + 2) || '/' AS rest)), '')
WHERE target_kind <> 'worker' AND queue = target_kind;
UPDATE tasks SET queue = 'everbeat:' || queue,
  fair_key = coalesce((
    SELECT lower(substr(rest, 1, instr(rest, '/') - 1))
    FROM (SELECT substr(target ->> 'url', instr(target ->> 'url', '//') + 2) || '/' AS rest)), '')
WHERE target <> '{}' AND target ->> 'kind' = queue AND queue <> 'worker';
