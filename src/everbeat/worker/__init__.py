"""The worker: claims tasks, runs their handlers, renews their leases and reports their outcomes."""
