"""A step's task, the origin of a resumed run, and the checks before a run."""
