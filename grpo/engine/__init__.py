"""UCI engines: processes with timeouts and restarts, searches, and the values of moves, which are the reward."""
