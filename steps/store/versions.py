"""The version of a step: a hash of everything that its output depends on.

Its part of the settings, its inputs' hashes, the code of the modules that it imports (followed through the project's own packages), and the
locked dependencies that it runs with (a linter or a test's tool changes no output). Same version, same output hash; so an output that is in
the store under its version need not be computed again.

Code is the syntax tree without comments, docstrings, the layout of lines and imports for type checkers alone: rewording a sentence never
trains a network again. Names of modules are part of it, for they say which code is imported.
"""

import ast
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from grpo.base.files import sha256_file, sha256_json
from steps.step_io.spec import StepSpec

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("steps", "data_checks", "grpo")
LOCK: Final = ROOT / "requirements-run.lock"
"""Of the packages that outputs of steps depend on."""
LANGUAGE_LOCK: Final = ROOT / "requirements-language.lock"
"""Of those that outputs of steps with a language model depend on: the same, and the extra's."""
LOCKS: Final[Mapping[str, Path]] = {"lock": LOCK, "language_lock": LANGUAGE_LOCK}
"""As `describe_code` names them."""
_LEFT: Final[Mapping[Path, str]] = {LOCK: "run-lock", LANGUAGE_LOCK: "language-lock"}
"""Lock -> the file of an environment in which infra/install.sh leaves its hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVersion:
    """A version and the parts it was made from, to be compared part by part when two versions differ."""

    version: str
    parts: Mapping[str, Any]


def step_version(spec: StepSpec, *, settings: Mapping[str, Any], inputs: Mapping[str, str], code: Mapping[str, Any]) -> StepVersion:
    """Return the version of a step.

    Args:
        spec: the step's name, and the module with its body.
        settings: the part of the settings that it reads, JSON-able.
        inputs: name -> hash of what it takes from other steps, files, engine or machine.
        code: from `describe_code`; only its lock counts, for a commit may change nothing here. A step that reads the settings of a
            language model runs with the packages of that extra.
    """
    lock = code["language_lock"] if "language" in settings else code["lock"]
    parts = {
        "step": spec.name,
        "settings": dict(settings),
        "inputs": dict(inputs),
        "sources": code_hash(spec.body),
        "lock": lock,
    }
    return StepVersion(version=sha256_json(parts)[:24], parts=parts)


@cache
def code_hash(module: str) -> str:
    """Return the hash of the code of a module and of all modules of the project that it imports, however far away."""
    return sha256_json({name: _digest_of_code(path) for name, path in imported_modules(module).items()})


@cache
def imported_modules(module: str) -> dict[str, Path]:
    """Return name -> file of a module and of all modules of the project that it imports while it runs.

    Imports inside functions count, those under `if TYPE_CHECKING:` do not; neither do the presets' tables.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if name in found or path is None:
            continue
        found[name] = path
        for node in ast.walk(_code(path)):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return dict(sorted(found.items()))


class _Prose(ast.NodeTransformer):
    """Removes what no result depends on: docstrings, imports for type checkers, and a body's `SPEC`, which is in the version by value."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | None:
        """Drop `SPEC: Final = StepSpec(...)`."""
        return None if isinstance(node.target, ast.Name) and node.target.id.endswith("SPEC") else node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Drop a text that stands alone: a docstring."""
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Keep only the `else` of `if TYPE_CHECKING:`."""
        self.generic_visit(node)
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if is_for_types else node


def _code(path: Path) -> ast.Module:
    tree = _Prose().visit(ast.parse(path.read_text(encoding="utf-8")))
    assert isinstance(tree, ast.Module)
    return tree


@cache
def _digest_of_code(path: Path) -> str:
    return sha256(ast.dump(_code(path)).encode()).hexdigest()


def _file_of(module: str) -> Path | None:
    if module.split(".", maxsplit=1)[0] not in _PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def describe_code(_: str = "") -> dict[str, Any]:
    """Return git commit, dirty flag and hashes of the locks: asked where the run is launched, for a container has neither.

    Takes the text of a Metaflow config, and ignores it.
    """
    locks = {name: _hash(lock) for name, lock in LOCKS.items()}
    try:
        commit = _git("rev-parse", "HEAD")
        is_dirty = bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "is_dirty": True, **locks}
    return {"commit": commit, "is_dirty": is_dirty, **locks}


def installed_lock(lock: Path = LOCK) -> str:
    """Return the hash of the lock that this environment or image was installed from, as infra/install.sh left it; empty when nobody says.

    Where it differs from `describe_code`'s, outputs made here do not come from the packages that their versions name.
    """
    left = Path(sys.prefix) / _LEFT.get(lock, "")
    return left.read_text(encoding="utf-8").strip() if left.is_file() else ""


def _hash(lock: Path) -> str:
    return sha256_file(lock) if lock.is_file() else ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
