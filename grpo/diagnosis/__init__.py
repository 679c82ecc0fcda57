"""Diagnosis of a training run: from its metric history to named findings, each with evidence, cause and remedy."""
