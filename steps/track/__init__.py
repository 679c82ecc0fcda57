"""Views of the store's runs: MLflow, W&B, the registry and its models. Runs go on if a tracker fails."""
