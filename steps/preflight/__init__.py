"""What can be known to fail before a run starts."""
