"""Quality checks of a dataset with Great Expectations, from tables to a report."""
