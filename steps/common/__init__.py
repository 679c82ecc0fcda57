"""Code that several steps share: the dataset's tables, matches, the training loop, the diagnosis during training, policies."""
