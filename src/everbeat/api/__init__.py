"""The HTTP API: one file per resource, and what all of them share."""
