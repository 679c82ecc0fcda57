"""Opens a policy folder of any kind as a competitor, which plays and is measured."""
