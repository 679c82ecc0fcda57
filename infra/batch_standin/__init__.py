"""A stand-in for AWS Batch on one machine: moto's S3, IAM, Secrets Manager and Batch, whose jobs see nothing of the launcher.

What fails in the cloud for want of a package, a variable or a file fails here too. It is described in docs/batch_standin.md.
"""

from infra.batch_standin.container import ContainerError, refusal
from infra.batch_standin.jobs import BatchJob
from infra.batch_standin.standin import StandIn, batch_standin

__all__ = ["BatchJob", "ContainerError", "StandIn", "batch_standin", "refusal"]
