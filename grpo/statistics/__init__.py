"""Intervals, ratings, sequential halving, the phase guard and the verdict: numbers alone, neither chess nor torch."""
