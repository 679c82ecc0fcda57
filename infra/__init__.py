"""Images, queues, installation, printed pages, lint. Containers do not get this folder."""
