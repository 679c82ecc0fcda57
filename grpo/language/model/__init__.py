"""Causal language models as policies: loading, saving, forward passes."""
