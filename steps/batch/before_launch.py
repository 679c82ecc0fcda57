"""Checks before the flow starts, because Metaflow would report faults as tracebacks."""

from collections.abc import Iterator, MutableMapping, Sequence

from steps.batch.destination import BY_NAME_ONLY, DestinationError, sends_to_batch
from steps.run.commands import refuse_settings
from steps.run.machine import SECRETS
from steps.run.orchestrator import configuration, service


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> Iterator[str]:
    """Yield notes for the user. The checks run while the caller iterates.

    - Always: Metaflow's configuration.
    - For `run` and `resume`: the command's settings, and Metaflow's service.
    - For tasks on AWS Batch: the account. METAFLOW_DEFAULT_DATASTORE becomes s3 in `environment`, unless set.

    Raises CommandError for mistyped settings, OrchestratorError for a wrong configuration, DestinationError for failed checks of AWS.
    """
    configuration(environment)
    if not {"run", "resume"} & set(arguments):
        return
    refuse_settings(arguments)
    is_sent = sends_to_batch(arguments)
    if is_sent:
        environment.setdefault("METAFLOW_DEFAULT_DATASTORE", "s3")
    service()
    if not is_sent:
        return
    from steps.batch.account import batch_checks  # Imports Metaflow, which reads the variable above.
    from steps.job.preflight import table

    checks = batch_checks(environment)
    if failed := [check for check in checks if not check.is_fine]:
        raise DestinationError(f"tasks cannot be sent to AWS Batch:\n{table(failed)}")
    if warnings := [check for check in checks if check.is_warning]:
        yield table(warnings)
    not_sent = [name for name in BY_NAME_ONLY if name in environment]
    if not_sent and not environment.get(SECRETS):
        yield f"note: {', '.join(not_sent)} of this machine are not sent to Batch; name secrets that hold them in {SECRETS} (docs/aws.md)"
