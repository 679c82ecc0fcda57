"""Pages that show and play games, and PGN."""
