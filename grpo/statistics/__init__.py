"""Intervals, ratings, sequential halving, the phase guard and the verdict: arithmetic without chess or torch."""
