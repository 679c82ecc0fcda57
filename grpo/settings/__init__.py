"""Settings and presets of a run."""
