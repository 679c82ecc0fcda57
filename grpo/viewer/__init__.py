"""Pages for looking at games and for playing, and the PGN files of matches."""
