"""Shell tasks: runs commands for workers that were started with --allow-shell."""
