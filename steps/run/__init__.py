"""Foundation of all steps: declarations, versions, store, records of runs, machine, processes."""
