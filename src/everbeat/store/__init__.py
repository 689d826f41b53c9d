"""The only package that contains SQL: the Store contract in base.py, and one implementation per dialect."""
