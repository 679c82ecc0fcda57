"""Foundation of all steps: declaration, version, store of outputs, records of runs, machine, processes."""
