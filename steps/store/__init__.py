"""Step outputs by version: local store, shared object storage (S3), leases, version hashes."""
