"""What people read of a run: one document of its results, and the pages and texts that are templates of it."""
