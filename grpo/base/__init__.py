"""Errors, hashed and atomic files, named random streams, did-you-mean; imports nothing else of this project."""
