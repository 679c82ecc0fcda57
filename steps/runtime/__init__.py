"""This process and its machine: environment variables, torch device, exit codes, process identity, parent death."""
