"""Policies of any kind, which play and are measured."""
