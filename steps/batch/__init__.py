"""Runs on AWS Batch: account checks, tasks' variables, Metaflow's decorators, spot interruptions."""
