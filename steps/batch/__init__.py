"""Runs on AWS Batch: checks of the account, variables of tasks, Metaflow's decorators, spot interruptions."""
