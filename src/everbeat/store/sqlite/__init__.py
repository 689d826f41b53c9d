"""The SQLite implementation of the Store contract."""
