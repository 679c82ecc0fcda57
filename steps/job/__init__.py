"""Carries a step: the task that runs it, the run that it resumes from, the checks before a run."""
