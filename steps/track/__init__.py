"""Views of what the store holds: MLflow, W&B, the registry of policies and its models; each may be away."""
