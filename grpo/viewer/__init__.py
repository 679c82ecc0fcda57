"""Pages for looking at games and for playing, and PGN."""
