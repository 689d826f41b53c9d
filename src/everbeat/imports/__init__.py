"""Converts the schedules of other schedulers. Modules here read and convert; the command line shows and writes."""
