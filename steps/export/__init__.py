"""A policy as a folder of its own, with its model card."""
