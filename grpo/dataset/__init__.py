"""Games to a table of boards with exact quotas."""
