"""The version of a step: a hash of everything that its output depends on.

It covers the settings that the step reads, the hashes of its inputs, the code of the modules that it imports (within this project), and
the locked runtime dependencies (linters and test tools change no output). The same version gives the same output hash, so an output that
the store has under its version is reused.

Code is hashed as a syntax tree without comments, docstrings, line layout and imports for type checkers: rewording a sentence never
retrains a network. Module names are part of the hash, because they say which code is imported.
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
LOCK: Final = Path(__file__).with_name("requirements-run.lock")
"""Lock file of the packages that step outputs depend on; beside this file, so that an installed package has it too."""
LANGUAGE_LOCK: Final = Path(__file__).with_name("requirements-language.lock")
"""Lock file of the packages that step outputs of a language model depend on: the same, and those of the extra."""
LOCKS: Final[Mapping[str, Path]] = {"lock": LOCK, "language_lock": LANGUAGE_LOCK}
"""Name in the result of `describe_code` -> lock file."""
_LOCK_MARKERS: Final[Mapping[Path, str]] = {LOCK: "run-lock", LANGUAGE_LOCK: "language-lock"}
"""Lock file -> the file of an environment in which infra/install.sh records its hash."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVersion:
    """A version and the parts that were hashed, to explain how two versions differ."""

    version: str
    parts: Mapping[str, Any]


def step_version(spec: StepSpec, *, settings: Mapping[str, Any], inputs: Mapping[str, str], code: Mapping[str, Any]) -> StepVersion:
    """Return the version of a step.

    Args:
        spec: the step's name, and the module with its body.
        settings: the part of the settings that it reads, JSON-able.
        inputs: name -> hash of each input from other steps, files, engine or machine.
        code: from `describe_code`; only its lock counts, because a commit may not affect this step. A step that reads the settings of
            a language model runs with the packages of that extra.
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
    """Return the hash of the code of a module and of all project modules that it imports, directly or indirectly."""
    return sha256_json({name: _code_of(path.read_text(encoding="utf-8")).digest for name, path in imported_modules(module).items()})


def hash_of_all_steps() -> str:
    """Return the hash of the code of all steps' bodies and of the lock files: with settings, files and engine it gives all results."""
    bodies = sorted(path.stem for path in (ROOT / "steps" / "bodies").glob("*.py"))
    return sha256_json({"bodies": {name: code_hash(f"steps.bodies.{name}") for name in bodies}, **_hashes_of_locks()})


@cache
def imported_modules(module: str) -> dict[str, Path]:
    """Return name -> file of a module and of all project modules that it imports at run time.

    Imports inside functions count; those under `if TYPE_CHECKING:` do not.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += _code_of(path.read_text(encoding="utf-8")).imports
    return dict(sorted(found.items()))


class _Prose(ast.NodeTransformer):
    """Removes what no result depends on: docstrings, imports for type checkers, and a body's `SPEC`, which is in the version by value."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign | None:
        """Drop `SPEC: Final = StepSpec(...)`."""
        return None if isinstance(node.target, ast.Name) and node.target.id.endswith("SPEC") else node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        """Drop a string expression statement: a docstring."""
        return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Keep only the `else` of `if TYPE_CHECKING:`."""
        self.generic_visit(node)
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if is_for_types else node


@dataclass(frozen=True, slots=True)
class _Code:
    digest: str
    imports: tuple[str, ...]


@cache
def _code_of(source: str) -> _Code:
    tree = _Prose().visit(ast.parse(source))
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return _Code(sha256(ast.dump(tree).encode()).hexdigest(), tuple(imports))


def _file_of(module: str) -> Path | None:
    if module.split(".", maxsplit=1)[0] not in _PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def describe_code(_: str = "") -> dict[str, Any]:
    """Return git commit, dirty flag and hashes of the lock files; called where the run is launched, because a container has no git.

    The argument is the text of a Metaflow config; it is ignored.
    """
    locks = _hashes_of_locks()
    try:
        commit = _git("rev-parse", "HEAD")
        is_dirty = bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "is_dirty": True, **locks}
    return {"commit": commit, "is_dirty": is_dirty, **locks}


def installed_lock(lock: Path = LOCK) -> str:
    """Return the hash of the lock file that this environment was installed from, as infra/install.sh recorded it; empty when unknown.

    When it differs from `describe_code`'s, this environment does not have the packages that the versions of its outputs name.
    """
    marker = Path(sys.prefix) / _LOCK_MARKERS.get(lock, "")
    return marker.read_text(encoding="utf-8").strip() if marker.is_file() else ""


def _hashes_of_locks() -> dict[str, str]:
    return {name: sha256_file(lock) for name, lock in LOCKS.items()}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
