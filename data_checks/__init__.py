"""Data quality checks of the dataset with Great Expectations: from tables to a report."""
