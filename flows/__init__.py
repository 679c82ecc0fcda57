"""The Metaflow flow: order of steps, branches, resources. The package `steps` does the work."""
