-- When a task became ready again after it was held or after an attempt: the time in ready is measured from then. Nodes of the
-- previous version can keep running; they do not set it.

ALTER TABLE tasks ADD COLUMN ready_at timestamptz;
