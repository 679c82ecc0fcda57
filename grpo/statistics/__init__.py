"""Intervals, SPRT, ratings and sample sizes: pure numbers."""
