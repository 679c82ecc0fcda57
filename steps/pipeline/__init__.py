"""What the flow calls: version, look up, run the body, publish; resume."""
