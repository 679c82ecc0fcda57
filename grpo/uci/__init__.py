"""Serves a policy as a UCI engine; `grpo.engine` is the other direction (it drives engines)."""
