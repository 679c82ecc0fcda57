"""The contract between the flow and a step body: `Work`, `Sink`, history, file names."""
