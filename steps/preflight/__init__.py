"""Preflight checks: finds what would make a run fail before it starts."""
