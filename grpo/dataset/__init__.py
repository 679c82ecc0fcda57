"""Dataset: boards from files or engine games, with exact quotas per split and game phase."""
