"""Reads runs back from the tracking store: index, history, results, comparison."""
