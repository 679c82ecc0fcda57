"""Generation of answers: sampling, retries, the player of matches, the search of the UCI engine."""
