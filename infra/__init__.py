"""Tools around the pipeline: container images, AWS queues, installation, printed pages, lint. Containers do not get this folder."""
