"""Our policy served as a UCI engine; `grpo.engine` is the other direction."""
