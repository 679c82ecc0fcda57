"""Diagnosis of a training run: named findings from its metric history, each with evidence, cause and advice."""
