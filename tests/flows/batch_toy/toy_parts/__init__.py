"""A package beside the toy flow that goes into its archive."""
