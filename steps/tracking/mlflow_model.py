"""MLflow's models of registered policies, which load without a checkout of this project.

Each is a logged model, linked to the run that chose the policy, to the dataset and to the policy's metrics.
"""

import logging
import math
import shutil
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from grpo.base.files import read_json
from grpo.metrics.table import tracked_name
from grpo.policy.files import LANGUAGE, policy_file_names, policy_kind
from steps.step_io.names import REPORT
from steps.step_io.work import read_history
from steps.store.versions import ROOT
from steps.tracking.client import TrackingStore, seconds_for_a_file, waiting
from steps.tracking.step_notes import headlines
from steps.tracking.tags import POLICY_OUTPUT

# isort: split
# After `steps.tracking.client`, which sets what MLflow reads once.
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus, Metric
from mlflow.models import Model, ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array

# MLflow 3.17 warns of its own code when this is imported, and reports what goes well. For good: deliveries are threads.
warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType", category=UserWarning)
logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
from mlflow.pyfunc import save_model  # noqa: E402

_CODE: Final = Path(__file__).with_name("model_code.py")
"""The code that MLflow runs."""
DEFAULTS: Final = {"temperature": 1.0, "num_moves": 5, "seed": 0}
"""Parameters of a model's `predict`: `model_code` says what they do."""

NAME: Final = "chess-policy"
"""Of a logged model, beside its role."""
HELDOUT_REGRET: Final = "heldout/regret_best"

_NEEDS: Final = ("mlflow", "torch", "safetensors", "pydantic", "chess", "numpy", "pandas")
"""Packages that the code imports; a language model needs one more."""
_EXAMPLES: Final = (
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "rnbqkbnr/ppp1pppp/8/8/3pP3/2N5/PPPP1PPP/R1BQKBNR b KQkq e3 0 3",
)
_TYPES: Final = {float: DataType.double, int: DataType.long}
_OUTPUTS: Final[tuple[tuple[str, Any], ...]] = (
    ("move", DataType.string),
    ("probability", DataType.double),
    ("moves", Array(DataType.string)),
    ("probabilities", Array(DataType.double)),
)


def requirements(kind: str) -> list[str]:
    """Return what a kind of policy needs, pinned to the versions of this environment; of torch's builds the usual one."""
    names = (*_NEEDS, "transformers") if kind == LANGUAGE else _NEEDS
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def signature() -> ModelSignature:
    """Return what goes in (FENs, and the parameters with their defaults) and what comes out; a position without moves has null as move."""
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(kind, name, required=name not in ("move", "probability")) for name, kind in _OUTPUTS]),
        params=ParamSchema([ParamSpec(name, _TYPES[type(value)], value) for name, value in DEFAULTS.items()]),
    )


def write_model(folder: Path, source: Path, *, about: Model) -> None:
    """Write MLflow's model of a policy into a new folder.

    Args:
        folder: the folder to create.
        source: a folder with the policy, which may also contain the rest of a checkpoint.
        about: ids of MLflow's that go into `MLmodel`.
    """
    with tempfile.TemporaryDirectory() as made:
        (policy := Path(made) / "policy").mkdir()
        for name in policy_file_names(source):
            shutil.copyfile(source / name, policy / name)  # MLflow follows no links out of the folder.
        save_model(
            path=folder,
            python_model=str(_CODE),
            code_paths=[str(ROOT / "grpo")],
            artifacts={"policy": str(policy)},
            signature=signature(),
            input_example=(list(_EXAMPLES), dict(DEFAULTS)),
            pip_requirements=requirements(policy_kind(source)),
            mlflow_model=about,
        )
    for cache in sorted(folder.rglob("__pycache__")):
        shutil.rmtree(cache)


def log_model(store: TrackingStore, folder: Path, *, role: str, run: str, flow_run: str, output_hash: str, policy_step: int) -> LoggedModel:
    """Log MLflow's model of a policy, unless an earlier run with the same output did, link it to both runs, and return it.

    The call is idempotent.

    Args:
        store: the tracking store.
        folder: the output of `select`.
        role: `champion` or `peak` of its run.
        run: MLflow's id of the child run that selected it.
        flow_run: MLflow's id of its parent.
        output_hash: of the output.
        policy_step: training step of its checkpoint.
    """
    client, policy = store.client, f"{output_hash}/{role}"
    found = client.search_logged_models([store.experiment], f"tags.`{POLICY_OUTPUT}` = '{policy}'")
    model = (
        found[0]
        if found
        else client.create_logged_model(
            store.experiment,
            name=f"{NAME}-{role}",
            source_run_id=run,
            tags={POLICY_OUTPUT: policy},
            params={"policy_step": str(policy_step)},
            model_type="chess move probabilities",
        )
    )
    if model.status != LoggedModelStatus.READY:
        _upload(store, model, folder, role)
    for each in (run, flow_run):
        linked = client.get_run(each).outputs
        if linked is None or model.model_id not in [output.model_id for output in linked.model_outputs]:
            client.log_outputs(each, [LoggedModelOutput(model.model_id, step=policy_step)])
    datasets = client.get_run(flow_run).inputs.dataset_inputs
    measured_on = {"dataset_name": datasets[0].dataset.name, "dataset_digest": datasets[0].dataset.digest} if datasets else {}
    metrics = [
        Metric(tracked_name(name), value, model.creation_timestamp, policy_step, model_id=model.model_id, run_id=run, **measured_on)
        for name, value in policy_metrics(folder, policy_step).items()
        if math.isfinite(value)
    ]
    if metrics:
        client.log_batch(run, metrics=metrics)
    return model


def policy_metrics(folder: Path, policy_step: int) -> dict[str, float]:
    """Return what an output of `select` says of the policy of a step: all headlines of the candidate, of others the held-out regret."""
    if any(record.step == policy_step for record in read_history(folder)):
        return headlines("select", folder)
    regrets = read_json(folder / REPORT).get("heldout_regret_best", {})
    return {HELDOUT_REGRET: regrets[str(policy_step)]["mean"]} if str(policy_step) in regrets else {}


def _upload(store: TrackingStore, model: LoggedModel, source: Path, role: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        about = Model(artifact_path=model.artifact_location, model_uuid=model.model_id, model_id=model.model_id, run_id=model.source_run_id)
        write_model(folder, source / role, about=about)
        with waiting(seconds_for_a_file(sum(path.stat().st_size for path in folder.rglob("*")))):
            store.client.log_model_artifacts(model.model_id, str(folder))
    store.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
