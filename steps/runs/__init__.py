"""Reads finished runs back: index, history, results, comparison."""
