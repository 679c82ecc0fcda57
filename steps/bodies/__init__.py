"""One module a step: what it computes; knows no tracker, no store, no orchestrator."""
