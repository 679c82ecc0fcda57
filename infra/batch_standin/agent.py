"""A stand-in for the ECS agent's endpoints: credentials of a job's role, and metadata of its logs."""

from datetime import UTC, datetime, timedelta
from typing import Final

from infra.batch_standin.json_server import Answer

CREDENTIALS: Final = "/credentials/"
METADATA: Final = "/v4/"
_HOURS: Final = 6


def answer_container(region: str, role: str, method: str, path: str) -> Answer:
    """Answer a container's question; `path` ends in its job's id."""
    place, _, job = path[1:].partition("/")
    if method != "GET" or not job:
        return Answer({"message": f"{method} {path}: unknown"}, 404)
    if f"/{place}/" == CREDENTIALS:
        until = (datetime.now(UTC) + timedelta(hours=_HOURS)).strftime("%Y-%m-%dT%H:%M:%SZ")
        key = {"AccessKeyId": "ASIA-STAND-IN-ROLE", "SecretAccessKey": "of-the-role", "Token": f"of-job-{job}"}
        return Answer({"RoleArn": role, **key, "Expiration": until})
    if f"/{place}/" == METADATA:
        log = {"awslogs-group": "/aws/batch/job", "awslogs-region": region, "awslogs-stream": job}
        return Answer({"DockerId": job, "LogDriver": "awslogs", "LogOptions": log})
    return Answer({"message": f"{path}: unknown"}, 404)
