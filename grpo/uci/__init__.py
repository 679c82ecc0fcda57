"""Serves a policy as a UCI engine; `grpo.engine` drives engines."""
