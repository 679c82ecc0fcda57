"""Dataset: boards (chess positions) from files or engine games, with an exact number of boards per split and game phase."""
