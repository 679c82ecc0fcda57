"""Several machines train one policy."""
