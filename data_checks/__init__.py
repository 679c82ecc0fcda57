"""Checks of the data that steps hand on: a table in, a report out."""
