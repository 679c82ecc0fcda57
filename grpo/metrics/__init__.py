"""Metrics and events, and a step's record of them."""
