"""What surrounds the pipeline: images, queues, installation, and pages that are printed. No part of what is sent to a container."""
