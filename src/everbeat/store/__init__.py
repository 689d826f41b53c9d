"""The only room with SQL: one contract in base.py, two dialects beside it."""
