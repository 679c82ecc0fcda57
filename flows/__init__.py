"""The DAG: order of steps, branches, resources. No arithmetic."""
