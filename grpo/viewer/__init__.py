"""Pages on which people look at games and play, and the PGN files of matches."""
