"""Generated answers, and the match player and UCI engine that use them."""
