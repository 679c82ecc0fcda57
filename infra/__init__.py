"""Tools: container images, AWS queues, installation, printed pages, lint."""
