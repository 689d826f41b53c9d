-- When a task became ready again after it was held or after an attempt: the time in ready is measured from then.

ALTER TABLE tasks ADD COLUMN ready_at INTEGER;
