"""The scale run: how the cost of a tick grows with the number of schedules, and how many ticks one node can fire."""
