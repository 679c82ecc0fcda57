"""Step Functions for the stand-in: moto's interpreter executes state machines, with their jobs in the stand-in's Batch.

Metaflow's state machines meet three gaps of the interpreter (moto 5.2.5), which are filled here:

- A job's fields have names of their own in state machines (`JobDefinition`), which AWS translates to the API's (`jobDefinition`) and back.
  Moto left the translation out (`KeyError: 'JobDefinition'`); the functions that it consists of are still in its code.
- A path with several names, `$.['JobId', 'Parameters']`, selects an object in AWS, and a list of values in moto.
- An execution that was started without a name has none; AWS gives it one.
"""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_batch import StateTaskServiceBatch
    from moto.stepfunctions.parser.backend.execution import Execution
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend

_SEVERAL_NAMES: Final = re.compile(r"\$\.\['\w+'(, *'\w+')+\]")


@contextmanager
def executed_state_machines(address: str) -> Iterator[None]:
    """Let the moto server at this address, in this process, execute state machines while the block lasts; otherwise it only keeps them."""
    import botocore.session
    from moto.core.config import default_user_config
    from moto.stepfunctions.parser.asl.component.common.string import string_expression
    from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_batch import StateTaskServiceBatch
    from moto.stepfunctions.parser.asl.utils import boto_client
    from moto.stepfunctions.parser.asl.utils.json_path import extract_json
    from moto.stepfunctions.parser.models import StepFunctionsParserBackend

    model = botocore.session.get_session().get_service_model("batch")
    start = StepFunctionsParserBackend.start_execution

    def to_batch(service: "StateTaskServiceBatch", parameters: dict[str, Any]) -> None:
        service._to_boto_request(parameters, model.operation_model("SubmitJob").input_shape)

    def from_batch(service: "StateTaskServiceBatch", response: Any, *_: Any, service_action_name: str = "submit_job") -> None:
        operation = {"submit_job": "SubmitJob", "describe_jobs": "DescribeJobs"}[service_action_name]
        service._from_boto_response(response, model.operation_model(operation).output_shape)

    def extracted(path: str, data: Any) -> Any:
        if _SEVERAL_NAMES.fullmatch(path):
            return {name: data[name] for name in re.findall(r"'(\w+)'", path) if name in data}
        return extract_json(path, data)

    def started(backend: "StepFunctionsParserBackend", machine: str, name: str | None = None, *given: Any, **named: Any) -> "Execution":
        return start(backend, machine, name or str(uuid.uuid4()), *given, **named)

    with (
        patch.dict(default_user_config, {"stepfunctions": {"execute_state_machine": True}}),
        patch.object(boto_client, "moto_server_port", lambda: str(urlsplit(address).port)),
        patch.object(StateTaskServiceBatch, "_normalise_parameters", to_batch),
        patch.object(StateTaskServiceBatch, "_normalise_response", from_batch),
        patch.object(string_expression, "extract_json", extracted),
        patch.object(StepFunctionsParserBackend, "start_execution", started),
    ):
        yield
