-- Browser sessions of the dashboard: short-lived keys that belong to the key of the login and are revoked with it. Nodes of the
-- previous version can keep running.

ALTER TABLE api_keys ADD COLUMN session_of BLOB;
CREATE INDEX api_keys_sessions ON api_keys (session_of) WHERE session_of IS NOT NULL;
