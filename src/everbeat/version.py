"""The version of Everbeat."""

__version__ = "0.2.0"
