"""Causal language models as policies."""
