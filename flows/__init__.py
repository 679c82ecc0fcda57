"""The Metaflow flow: order of steps and branches. The package `steps` does the work."""
