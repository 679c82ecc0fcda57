"""What the steps import at run time is a dependency of the project, pinned in the images' lock, and no tool of developers."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("steps", "grpo", "data_checks", "flows")


def plain(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lines(name: str) -> list[str]:
    """Return the lines of a lock, a package each."""
    lines = (ROOT / name).read_text().replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def read_lock(name: str) -> dict[str, Requirement]:
    requirements = (Requirement(line.partition("--hash")[0]) for line in read_lines(name))
    return {plain(requirement.name): requirement for requirement in requirements}


LOCKS = {name: read_lock(name) for name in ("requirements.lock", "requirements-run.lock", "requirements-torch.lock")}
ALL, RUN, TORCH = LOCKS.values()


def imported(module: Path) -> set[str]:
    """Return the packages of others that a module imports when it runs."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(module.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += ast.iter_child_nodes(node)
    return found - set(PACKAGES) - sys.stdlib_module_names


def test_every_package_that_the_steps_import_is_in_the_images() -> None:
    brought_by: Mapping[str, list[str]] = packages_distributions()
    lock = RUN.keys() | TORCH.keys()
    for module in sorted(module for package in PACKAGES for module in (ROOT / package).rglob("*.py")):
        lacking = {name for name in imported(module) if not {plain(found) for found in brought_by.get(name, [])} & lock}
        assert lacking == set(), f"{module}: add it to the project's dependencies, and `make lock`"


def test_the_images_have_what_metaflow_would_install_at_every_start_and_no_tool() -> None:
    assert {"boto3", "requests"} <= RUN.keys()
    assert not {"pytest", "mypy", "moto", "ruff"} & RUN.keys()


def test_a_package_of_several_locks_has_one_version() -> None:
    def pins(lock: Mapping[str, Requirement]) -> set[tuple[str, str]]:
        return {(name, str(each.specifier)) for name, each in lock.items()}

    assert pins(RUN) <= pins(ALL)
    assert not TORCH.keys() & RUN.keys()
    assert str(TORCH["torch"]) in PROJECT["project"]["dependencies"]
    for lock in LOCKS.values():
        assert all([specifier.operator for specifier in each.specifier] == ["=="] for each in lock.values())


@pytest.mark.parametrize("name", sorted(LOCKS.keys() - {"requirements-torch.lock"}))
def test_a_lock_has_the_hashes_of_every_package(name: str) -> None:
    assert [line for line in read_lines(name) if not re.search(r"( --hash=sha256:[0-9a-f]{64})+$", " ".join(line.split()))] == []


def test_this_environment_is_the_one_that_the_locks_name() -> None:
    differing = {}
    for name, requirement in (ALL | TORCH).items():
        if (requirement.marker is not None and not requirement.marker.evaluate()) or name.startswith(("nvidia-", "cuda-", "triton")):
            continue  # Not for this system, or of torch's CUDA build, which may be the other one here.
        try:
            found = version(name).partition("+")[0]
        except PackageNotFoundError:
            found = "missing"
        if found not in {specifier.version for specifier in requirement.specifier}:
            differing[name] = found
    assert differing == {}, "this environment is older than the locks: make setup"
