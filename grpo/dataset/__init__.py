"""Files and games of the engine to a table of boards with exact quotas per split and phase."""
