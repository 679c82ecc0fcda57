"""Code that several steps share: the dataset's files, matches, the training loop, the diagnosis during training, policies."""
