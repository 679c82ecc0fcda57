"""MLflow's models of registered policies, which load without a checkout of this project.

A peak's model has its whole checkpoint, and beside it what a run needs that resumes from it on a machine without the store: `origin.json`
(settings, code, outputs by hash) and the outputs of the steps before `finetune`.
"""

import logging
import shutil
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pandas as pd

import steps
from grpo.base.files import file_hashes, sha256_json, write_json
from grpo.policy.files import LANGUAGE, copy_policy, policy_kind
from steps.run.aliases import PEAK
from steps.run.records import Run
from steps.run.store import Store
from steps.track.client import FILES, TrackingStore, waiting
from steps.track.registry import ORIGIN, RESUMED_WITH

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.entities import LoggedModel, LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, infer_signature

# MLflow 3.17 warns of its own code when this is imported, and reports what goes well. For good: publishers are threads.
warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType", category=UserWarning)
logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
from mlflow.pyfunc import save_model  # noqa: E402

_CODE: Final = Path(__file__).with_name("model_code.py")
"""The code that MLflow runs."""
_LIBRARY: Final = Path(steps.__file__).parents[1] / "grpo"
_POLICY: Final = "chess_grpo.policy"
"""On a logged model: the hash of the output of `select` that has the policy, and its role there."""
DEFAULTS: Final = {"temperature": 1.0, "num_moves": 5, "seed": 0}
"""Parameters of a model's `predict`: `model_code` says what they do."""
_NEEDS: Final = ("mlflow", "torch", "safetensors", "pydantic", "chess", "numpy", "pandas")
"""Packages that the code imports; a language model needs one more."""
_EXAMPLES: Final = (
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "rnbqkbnr/ppp1pppp/8/8/3pP3/2N5/PPPP1PPP/R1BQKBNR b KQkq e3 0 3",
)
_ANSWERS: Final = {"move": ["e2e4", None], "probability": [0.5, None], "moves": [["e2e4"]] * 2, "probabilities": [[0.5]] * 2}
"""What `predict` may return: a position without moves has none."""


def requirements(kind: str) -> list[str]:
    """Return what a kind of policy needs, pinned to the versions of this environment; of torch's builds the usual one."""
    names = (*_NEEDS, "transformers") if kind == LANGUAGE else _NEEDS
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def write_model(folder: Path, files: Path, *, about: Model) -> None:
    """Write MLflow's model of a policy into a new folder.

    Args:
        folder: the folder to create.
        files: a folder with the folder `policy`, and others that go with it.
        about: ids of MLflow's that go into `MLmodel`.
    """
    save_model(
        path=folder,
        python_model=str(_CODE),
        code_paths=[str(_LIBRARY)],
        artifacts={each.name: str(each) for each in sorted(files.iterdir())},
        signature=infer_signature(list(_EXAMPLES), pd.DataFrame(_ANSWERS), DEFAULTS),
        input_example=(list(_EXAMPLES), dict(DEFAULTS)),
        pip_requirements=requirements(policy_kind(files / "policy")),
        mlflow_model=about,
    )
    for cache in sorted(folder.rglob("__pycache__")):
        shutil.rmtree(cache)


def log_model(tracking: TrackingStore, run: Run, store: Store, *, role: str, policy_step: int, parent: str) -> tuple[LoggedModel, str]:
    """Log MLflow's model of a policy, unless an earlier run with the same output did; return it and the hash of its files.

    The call is idempotent.

    Args:
        tracking: the tracking store.
        run: whose output of `select` has the policy.
        store: has the outputs.
        role: `champion` or `peak` of the run.
        policy_step: training step of the policy.
        parent: MLflow's id of the run.
    """
    output = run.output_of("select")
    assert output is not None
    client, policy = tracking.client, f"{output['output_hash']}/{role}"
    found = client.search_logged_models([tracking.experiment], f"tags.`{_POLICY}` = '{policy}'")
    if found:
        model = found[0]
    else:
        model = client.create_logged_model(
            tracking.experiment,
            name=f"chess-policy-{role}",
            source_run_id=parent,
            tags={_POLICY: policy},
            params={"policy_step": str(policy_step)},
            model_type="chess move probabilities",
        )
    if model.status != LoggedModelStatus.READY:
        _upload(tracking, model, run, store, role)
        model = client.get_logged_model(model.model_id)
    linked = client.get_run(parent).outputs
    if linked is None or model.model_id not in [each.model_id for each in linked.model_outputs]:
        client.log_outputs(parent, [LoggedModelOutput(model.model_id, step=policy_step)])
    return model, str(model.tags[FILES])


def _upload(tracking: TrackingStore, model: LoggedModel, run: Run, store: Store, role: str) -> None:
    output = run.output_of("select")
    assert output is not None
    with tempfile.TemporaryDirectory() as made:
        files, folder = Path(made) / "files", Path(made) / "model"
        files.mkdir()
        if role == PEAK:
            shutil.copytree(store.file(output, role), files / "policy")
            _write_origin(files / "origin", run, store)
        else:
            copy_policy(store.file(output, role), files / "policy")
        about = Model(artifact_path=model.artifact_location, model_uuid=model.model_id, model_id=model.model_id, run_id=model.source_run_id)
        write_model(folder, files, about=about)
        with waiting():
            tracking.client.log_model_artifacts(model.model_id, str(folder))
        tracking.client.set_logged_model_tags(model.model_id, {FILES: sha256_json(file_hashes(files))})
    tracking.client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def _write_origin(folder: Path, run: Run, store: Store) -> None:
    """Write what a run needs that resumes from the peak: the small documents, and the outputs of the steps before `finetune`."""
    outputs = {step: output for step in RESUMED_WITH if (output := run.output_of(step)) is not None}
    for step, output in outputs.items():
        shutil.copytree(store.open(output), folder / step)
    facts = run.facts
    about = {"run": run.name, "preset": facts["preset"], "settings": facts["settings"], "code": facts["code"], "outputs": outputs}
    write_json(folder / ORIGIN, about)
