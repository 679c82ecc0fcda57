"""Matches: players, paired games, openings, adjudication, PGN, and the ladder of rated opponents."""
