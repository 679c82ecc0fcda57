"""Step outputs by version: local and shared store, object storage, leases, version hash."""
