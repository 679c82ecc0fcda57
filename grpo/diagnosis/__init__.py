"""Diagnosis of a training run: finds named faults in the history of its metrics, each with evidence, cause and advice."""
