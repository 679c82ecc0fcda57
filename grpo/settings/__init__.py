"""Settings and presets of a run, and the names of its metrics and events."""
