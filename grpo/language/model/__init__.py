"""Loading, saving and wrapping a causal language model."""
