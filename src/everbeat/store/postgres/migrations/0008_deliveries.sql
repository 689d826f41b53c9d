-- Deliveries: reserved queues, destinations as fair keys, and the response of each attempt. Nodes of the previous version can keep
-- running.

ALTER TABLE schedules ADD COLUMN fair_key text NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN response text;
ALTER TABLE task_history ADD COLUMN response text;
ALTER TABLE attempts ADD COLUMN response text;
ALTER TABLE nodes ADD COLUMN deliveries text;

-- Before, the tasks of a target were in a queue with the name of its kind, and nothing delivered them.
UPDATE schedules SET queue = 'everbeat:' || target_kind,
  fair_key = coalesce(lower(substring(target::json ->> 'url' FROM '^[a-z]+://([^/?#]*)')), '')
WHERE target_kind <> 'worker' AND queue = target_kind;
UPDATE tasks SET queue = 'everbeat:' || queue,
  fair_key = coalesce(lower(substring(target::json ->> 'url' FROM '^[a-z]+://([^/?#]*)')), '')
WHERE target <> '{}' AND target::json ->> 'kind' = queue AND queue <> 'worker';
