"""UCI engines over raw pipes: pooled, deadlined, respawned; they raise, and never invent a score."""
