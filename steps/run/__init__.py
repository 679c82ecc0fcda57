"""Foundation of all steps."""
