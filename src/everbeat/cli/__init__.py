"""The command line: one module per command group. main.py registers the commands."""
