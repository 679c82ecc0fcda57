"""Names, units and meanings of all metrics and events, and the record of one step's metrics."""
