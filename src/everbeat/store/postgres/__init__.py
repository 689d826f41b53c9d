"""The PostgreSQL implementation of the Store contract."""
