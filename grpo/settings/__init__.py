"""Every number that a run depends on, and the page printed from it."""
