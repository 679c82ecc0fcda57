"""UCI engines, and the values of moves."""
