"""A run's history in, named findings out: each with evidence, its true cause, and a remedy."""
