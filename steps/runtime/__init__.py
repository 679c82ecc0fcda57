"""This process on this machine: environment, device, exit codes, process identity, death with the parent."""
