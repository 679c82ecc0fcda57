"""Views of what the store holds: MLflow, W&B, the registry of policies; every one may be away."""
