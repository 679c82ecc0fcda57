"""Serves a policy as a UCI engine."""
