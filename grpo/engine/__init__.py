"""UCI engines that are asked for scores and moves: processes with timeouts and restarts, and move values (the reward)."""
