"""Checks before the flow starts, because Metaflow would report faults as tracebacks."""

from collections.abc import Iterator, MutableMapping, Sequence

from steps.batch.destination import BY_NAME_ONLY, DestinationError, place_of
from steps.run.commands import refuse_settings
from steps.run.machine import SECRETS
from steps.run.orchestrator import configuration, service


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> Iterator[str]:
    """Check while the caller iterates, and yield warnings and notes for the user.

    - All commands: Metaflow's configuration. If tasks run on other machines, METAFLOW_DEFAULT_DATASTORE becomes s3, unless set.
    - `run` and `resume`: also `--config`, `--config-value` and Metaflow's metadata service.
    - `run` and `resume` on AWS Batch or Kubernetes: also the AWS account (bucket, images, secrets).

    Raises OrchestratorError (configuration, service), CommandError (options), DestinationError (account).
    """
    configuration(environment)
    if place := place_of(arguments, environment):
        environment.setdefault("METAFLOW_DEFAULT_DATASTORE", "s3")
    if not {"run", "resume"} & set(arguments):
        return
    refuse_settings(arguments)
    service()
    if not place:
        return
    from steps.batch.account import account_checks  # Imports Metaflow, which reads METAFLOW_DEFAULT_DATASTORE.
    from steps.job.preflight import table

    checks = account_checks(environment, place)
    if failed := [check for check in checks if not check.is_fine]:
        raise DestinationError(f"tasks cannot be sent to {place}:\n{table(failed)}")
    if warnings := [check for check in checks if check.is_warning]:
        yield table(warnings)
    not_sent = [name for name in BY_NAME_ONLY if name in environment]
    if not_sent and not environment.get(SECRETS):
        names = ", ".join(not_sent)
        yield (
            f"note: tasks do not get this machine's {names}; store the values as AWS secrets, and list the secrets' names in {SECRETS}"
            " (docs/aws.md)"
        )
