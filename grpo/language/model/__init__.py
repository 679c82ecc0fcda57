"""Loading, saving and wrapping of causal language models as policies."""
