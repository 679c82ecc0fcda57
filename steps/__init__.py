"""The steps of the pipeline as plain functions. The only room that knows trackers, and (in `cards` alone) the orchestrator."""
