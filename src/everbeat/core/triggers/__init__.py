"""Triggers: one file per kind, all behind the contract in base.py."""
