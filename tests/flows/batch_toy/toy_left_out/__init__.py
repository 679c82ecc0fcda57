"""A package that the launcher can import and the archive does not have."""
