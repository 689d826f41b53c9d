"""The HTTP API: one module per resource, and the code that they share."""
