"""Triggers: one file per kind. base.py has the protocol that they implement."""
