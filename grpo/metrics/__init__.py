"""Names, units and meanings of all metrics and events, and a step's record of them."""
