"""The services: the loops of a node and the operations behind the API, on any store."""
