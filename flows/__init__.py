"""The Metaflow flow: order of steps and branches."""
