"""Intervals, ratings, sequential halving, the phase guard and the verdict."""
