"""Errors, hashed and atomic files, named random streams, did-you-mean suggestions. This package imports nothing else of the project."""
