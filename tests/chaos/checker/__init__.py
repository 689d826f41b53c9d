"""Judges the report of a chaos run. It imports nothing of Everbeat, and of this package only the table of faults.

Its evidence is what the public API returned, and the logs that the workers, the webhook receiver, the load generator and the
injectors of faults wrote themselves.
"""
