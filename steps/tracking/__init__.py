"""Everything that writes to MLflow or W&B."""
