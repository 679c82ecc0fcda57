"""Matches and other measurements of strength."""
