"""MLflow's models of registered policies, which load without a checkout of this project.

A peak's model has its whole checkpoint, and beside it what a run needs that resumes from it on a machine without the store: `origin.json`
(settings, code, versions) and the outputs of the steps before `finetune`.
"""

import logging
import shutil
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import steps
from grpo.base.files import file_hashes, sha256_json, write_json
from grpo.policy.files import LANGUAGE, copy_policy, policy_kind
from steps.run.aliases import PEAK
from steps.run.records import Run
from steps.run.store import Store
from steps.track.client import waiting
from steps.track.registry import ORIGIN, RESUMED_WITH

# isort: split
# After `steps.track.client`, which sets what MLflow reads once.
from mlflow.models import infer_signature
from mlflow.tracking import MlflowClient

# MLflow 3.17 warns of its own code when this is imported, and reports what goes well. For good: publishers are threads.
warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType", category=UserWarning)
logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
from mlflow.pyfunc import save_model  # noqa: E402

if TYPE_CHECKING:
    from mlflow.entities import Run as Logged

_CODE: Final = Path(__file__).with_name("model_code.py")
"""The code that MLflow runs."""
_LIBRARY: Final = Path(steps.__file__).parents[1] / "grpo"
_NEEDS: Final = ("mlflow", "torch", "safetensors", "pydantic", "chess", "numpy", "pandas")
"""Packages that the code imports; a language model needs one more."""
_EXAMPLES: Final = (
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "rnbqkbnr/ppp1pppp/8/8/3pP3/2N5/PPPP1PPP/R1BQKBNR b KQkq e3 0 3",
)


def log_model(run: Run, store: Store, role: str, client: MlflowClient, parent: "Logged") -> tuple[str, str]:
    """Log MLflow's model of a policy to the files of the run's parent; return its address, and the hash of the hashes of its files.

    Args:
        run: whose output of `select` has the policy.
        store: has the outputs.
        role: `champion` or `peak` of the run.
        client: of the tracking store.
        parent: the run in MLflow.
    """
    output, place = run.output_of("select"), f"policies/{role}"
    assert output is not None
    with tempfile.TemporaryDirectory() as made:
        files, folder = Path(made) / "files", Path(made) / "model"
        files.mkdir()
        if role == PEAK:
            shutil.copytree(store.file(output, role), files / "policy")
            _write_origin(files / "origin", run, store)
        else:
            copy_policy(store.file(output, role), files / "policy")
        needs = (*_NEEDS, "transformers") if policy_kind(files / "policy") == LANGUAGE else _NEEDS
        save_model(
            path=folder,
            python_model=str(_CODE),
            code_paths=[str(_LIBRARY)],
            artifacts={each.name: str(each) for each in sorted(files.iterdir())},
            signature=infer_signature(list(_EXAMPLES)),
            input_example=list(_EXAMPLES),
            # Pinned to the versions of this environment; of torch's builds the usual one.
            pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in needs],
        )
        with waiting():
            client.log_artifacts(parent.info.run_id, str(folder), place)
        return f"{parent.info.artifact_uri}/{place}", sha256_json(file_hashes(files))


def _write_origin(folder: Path, run: Run, store: Store) -> None:
    """Write what a run needs that resumes from the peak: the small documents, and the outputs of the steps before `finetune`."""
    outputs = {step: output for step in RESUMED_WITH if (output := run.output_of(step)) is not None}
    for step, output in outputs.items():
        shutil.copytree(store.open(output), folder / step)
    versions = {step: output["version"] for step, output in outputs.items()}
    write_json(folder / ORIGIN, {"settings": run.facts["settings"], "code": run.facts["code"], "versions": versions})
