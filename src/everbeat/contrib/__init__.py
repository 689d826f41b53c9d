"""Integrations that users import into their own applications."""
