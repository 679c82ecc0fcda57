"""Dataset: boards (chess positions) from files or engine games, in a set number per split and game phase."""
