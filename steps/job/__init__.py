"""Running a step: the task that runs it, the origin of a resumed run, the checks before a run."""
