"""Views of the store's runs: MLflow, W&B, the registry and its models. A run goes on if a tracker does not answer."""
