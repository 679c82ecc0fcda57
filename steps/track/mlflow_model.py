"""Writes MLflow models of registered policies, which load without a checkout of this project."""

import logging
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from mlflow.models import infer_signature

import steps
from grpo.policy.files import policy_kind
from grpo.settings.kinds import KINDS

# MLflow 3.17 warns about its own code at import, and logs each success.
warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType", category=UserWarning)
logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
from mlflow.pyfunc import save_model  # noqa: E402

POLICY: Final = "policy"
_CODE: Final = Path(__file__).with_name("mlflow_code.py")
_LIBRARY: Final = Path(steps.__file__).parents[1] / "grpo"
LIBRARY: Final = "grpo.zip"
_NEEDS: Final = ("mlflow", "torch", "safetensors", "pydantic", "chess", "numpy", "pandas")
_EXAMPLES: Final = (
    "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "rnbqkbnr/ppp1pppp/8/8/3pP3/2N5/PPPP1PPP/R1BQKBNR b KQkq e3 0 3",
)


def write_model(files: Path, folder: Path) -> None:
    """Write a policy's MLflow model to a new `folder`, and the library beside it.

    The model loads the folder `policy` of `files`, and only stores the other folders.
    """
    library = folder.with_name(LIBRARY)
    write_archive(_LIBRARY, library)
    needs = (*_NEEDS, *KINDS[policy_kind(files / POLICY)].packages)
    save_model(
        path=folder,
        python_model=str(_CODE),
        code_paths=[str(library)],  # One file, because stores receive each file in a separate call.
        artifacts={path.name: str(path) for path in sorted(files.iterdir())},
        signature=infer_signature(list(_EXAMPLES)),
        input_example=list(_EXAMPLES),
        # This environment's versions, without build suffixes such as +cpu.
        pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in needs],
    )


def write_archive(package: Path, target: Path) -> None:
    """Write a package to a ZIP that Python can import; equal files give equal bytes."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            name = zipfile.ZipInfo(path.relative_to(package.parent).as_posix())
            archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
