"""Tasks, resumed runs, and checks before a run."""
