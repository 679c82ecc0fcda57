"""Runs on AWS Batch."""
