"""Tools around the pipeline: container images, AWS queues, installation, printed pages, lint."""
