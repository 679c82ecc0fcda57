"""The ground that a step runs on: declaration, version, store of outputs, records of runs, machine, processes."""
