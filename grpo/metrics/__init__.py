"""The table of metrics, and its page."""
