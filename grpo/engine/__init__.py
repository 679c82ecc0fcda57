"""UCI engines that are asked for scores and moves: processes with timeouts and restarts, move values (the reward) and their cache."""
