"""Delivery of tasks whose target is not a worker. `base.py` is the contract, and each kind of target is one module."""
