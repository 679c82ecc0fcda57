"""UCI engines: processes with timeouts and restarts, searches, and move values (the reward)."""
