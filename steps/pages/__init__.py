"""A run's results in one document, and pages and texts rendered from templates of the document."""
