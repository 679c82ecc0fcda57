"""Settings and presets of a run; `tree.py` has the whole tree."""
