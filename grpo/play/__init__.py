"""Players, games between them, openings, and the ladder of opponents."""
