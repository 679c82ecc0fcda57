"""Errors, files, random streams, suggestions. Imports no other package of the project."""
