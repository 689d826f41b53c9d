"""The pure heart: rules, decisions and states. No clock, no IO, no logging, no SQL: time is always an argument."""
