"""Basics, which import no other package of the project."""
