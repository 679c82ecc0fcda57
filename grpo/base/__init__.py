"""Errors, hashed and atomic files, named random streams, suggestions. Imports nothing else of this project."""
