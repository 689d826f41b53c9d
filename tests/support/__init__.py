"""What tests need around Everbeat: a real PostgreSQL, a faulty network, a steppable wall clock, server processes."""
