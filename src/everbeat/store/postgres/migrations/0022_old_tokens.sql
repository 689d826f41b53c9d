-- The index of old tokens contains only the checks that have one. Nodes of the previous version can keep running.

CREATE UNIQUE INDEX checks_old_token ON checks (old_token) WHERE old_token IS NOT NULL;
ALTER TABLE checks DROP CONSTRAINT checks_old_token_key;
