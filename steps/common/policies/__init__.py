"""Opens a policy folder of either kind as something that plays and is measured."""
