"""The pull worker: claim, run, heartbeat, shut down."""
