"""Test support: a real PostgreSQL, a faulty network, a wall clock that tests can step, and server processes."""
