"""Errors, hashed and atomic files, named random streams, did-you-mean; imports nothing of ours."""
