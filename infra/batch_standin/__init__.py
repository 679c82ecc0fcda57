"""A local stand-in for AWS Batch: moto's S3, IAM, Secrets Manager and Batch, with jobs isolated from the launcher.

A missing package, variable or file makes a job fail here as in the cloud (docs/batch_standin.md).
"""

from infra.batch_standin.container import ContainerError, refusal
from infra.batch_standin.jobs import BatchJob
from infra.batch_standin.standin import StandIn, batch_standin

__all__ = ["BatchJob", "ContainerError", "StandIn", "batch_standin", "refusal"]
