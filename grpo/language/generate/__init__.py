"""Generated answers, and players that use them."""
