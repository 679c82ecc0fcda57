"""AWS Batch: destination, deployment decorators, spot interruption."""
