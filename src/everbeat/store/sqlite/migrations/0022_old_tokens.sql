-- The index of old tokens contains only the checks that have one. Nodes of the previous version can keep running.
-- Differs from postgres: the index of the constraint stays, because SQLite cannot remove it.

CREATE UNIQUE INDEX checks_old_token ON checks (old_token) WHERE old_token IS NOT NULL;
