"""What surrounds the pipeline: images, the stack, and a stand-in for AWS Batch. No part of what is sent to a container."""
