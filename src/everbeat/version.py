"""The version of Everbeat."""

__version__ = "0.1.0"
