"""UCI engines: processes, searches, and the values of moves, which are the reward."""
