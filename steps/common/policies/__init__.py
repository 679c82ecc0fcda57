"""Policies of any kind as competitors, which play and are measured."""
