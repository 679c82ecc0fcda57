"""A run's results in one document, and pages rendered from the document."""
