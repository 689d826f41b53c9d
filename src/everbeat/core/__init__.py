"""Pure functions and values: rules, decisions and states. No clock, IO, logging or SQL; the time is always an argument."""
