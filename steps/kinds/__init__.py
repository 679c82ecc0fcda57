"""What differs between the kinds of policies: one object for each kind."""
