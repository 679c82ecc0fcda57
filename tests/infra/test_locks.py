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
# A flow may import another by its file's name: in a container all lie side by side.
OWN = {*PACKAGES, *(path.stem for path in (ROOT / "flows").glob("*.py"))}


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


LOCKS = {
    name: read_lock(name)
    for name in ("requirements.lock", "requirements-run.lock", "requirements-torch.lock", "requirements-language.lock")
}
ALL, RUN, TORCH, LANGUAGE = LOCKS.values()
DIRECT = {plain(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
EXTRA = {plain(Requirement(text).name) for text in PROJECT["project"]["optional-dependencies"]["language"]}
DEVELOPERS = {plain(Requirement(text).name) for text in PROJECT["dependency-groups"]["dev"]}


def foreign_imports(text: str) -> set[str]:
    """Return the packages of others that a module imports when it runs, anywhere in it."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - OWN - sys.stdlib_module_names


@pytest.fixture(scope="module")
def brought_by() -> Mapping[str, list[str]]:
    """Return the name to import -> names of the packages that bring it, of all that is installed here, tools too."""
    return packages_distributions()


def missing(text: str, brought_by: Mapping[str, list[str]], lock: Mapping[str, Requirement] = RUN) -> set[str]:
    """Return what is imported and would not be in an image."""
    return {
        name for name in foreign_imports(text) if not {plain(found) for found in brought_by.get(name, [])} & (lock.keys() | TORCH.keys())
    }


def is_of_the_extra(module: Path) -> bool:
    return module.is_relative_to(ROOT / "grpo" / "language") or module == ROOT / "steps" / "export" / "hub.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_that_the_steps_import_is_in_the_images(package: str, brought_by: Mapping[str, list[str]]) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    locks = {module: LANGUAGE if is_of_the_extra(module) else RUN for module in modules}
    lacking = {str(module): sorted(missing(module.read_text(), brought_by, lock)) for module, lock in locks.items()}
    assert {module: names for module, names in lacking.items() if names} == {}, "add it to the project's dependencies, and `make lock`"


@pytest.mark.parametrize(
    "line", ["import pytest", "def f():\n    from moto import mock_aws", "import mypy.api as torch", "import nowhere_at_all"]
)
def test_a_tool_or_an_unknown_package_is_seen(line: str, brought_by: Mapping[str, list[str]]) -> None:
    assert len(missing(line, brought_by)) == 1
    assert missing(f"if TYPE_CHECKING:\n    {line.splitlines()[-1].strip()}", brought_by) == set()


def test_every_direct_dependency_is_pinned_for_the_images_and_no_tool_is() -> None:
    assert DIRECT - {"torch"} <= RUN.keys()
    assert "torch" in TORCH
    # A tool that the steps' own packages need too (pyyaml is MLflow's, pillow is matplotlib's) is no tool there.
    assert DEVELOPERS & RUN.keys() == {"pillow", "pyyaml"}
    assert {"pytest", "mypy", "moto", "ruff"} <= DEVELOPERS & ALL.keys()


def test_the_extra_is_pinned_in_a_lock_of_its_own_which_has_all_of_the_images_other_packages_as_they_are() -> None:
    assert "transformers" in EXTRA
    assert LANGUAGE.keys() >= EXTRA
    assert not EXTRA & RUN.keys()
    assert {name: str(each.specifier) for name, each in RUN.items()}.items() <= {n: str(e.specifier) for n, e in LANGUAGE.items()}.items()
    assert {n: str(e.specifier) for n, e in LANGUAGE.items()}.items() <= {n: str(e.specifier) for n, e in ALL.items()}.items()
    assert all(TORCH[name].specifier == LANGUAGE[name].specifier for name in TORCH.keys() & LANGUAGE.keys()), "torch needs some of it too"
    assert "torch" not in LANGUAGE


def eager_imports(text: str) -> set[str]:
    """Return the modules that a module imports when it is itself imported."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(text).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif not isinstance(node, ast.FunctionDef) and not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += ast.iter_child_nodes(node)
    return found


def reaching_the_extra(texts: Mapping[str, str]) -> set[str]:
    """Return the modules that import the extra's packages when they are imported, however far away."""
    imports = {name: eager_imports(text) for name, text in texts.items()}
    wanted = {name.replace("-", "_") for name in EXTRA}
    reaching = {name for name, found in imports.items() if {each.partition(".")[0] for each in found} & wanted}
    while more := {name for name, found in imports.items() if found & reaching} - reaching:
        reaching |= more
    return reaching


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_without_the_extra_everything_else_can_be_imported() -> None:
    texts = {module_name(path): path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert {name for name in reaching_the_extra(texts) if "language" not in name} == set()
    deep = "import transformers\n"
    eager = {"grpo.language.deep": deep, "grpo.near": "from grpo.language import deep\n", "steps.far": "import grpo.near\n"}
    assert reaching_the_extra(eager) == set(eager)
    late = {**eager, "grpo.near": "def ask():\n    from grpo.language import deep\n"}
    assert reaching_the_extra(late) == {"grpo.language.deep"}


def test_the_images_have_what_metaflow_would_install_at_every_start() -> None:
    assert {"boto3", "requests"} <= RUN.keys()


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_every_package_to_one_version(name: str) -> None:
    assert LOCKS[name]
    for requirement in LOCKS[name].values():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], str(requirement)
        assert requirement.url is None


@pytest.mark.parametrize("name", sorted(LOCKS.keys() - {"requirements-torch.lock"}))
def test_a_lock_has_the_hashes_of_every_package(name: str) -> None:
    assert [line for line in read_lines(name) if not re.search(r"( --hash=sha256:[0-9a-f]{64})+$", " ".join(line.split()))] == []


def test_what_is_installed_from_a_lock_has_one_of_its_hashes() -> None:
    installs = [line for line in (ROOT / "infra" / "install.sh").read_text().splitlines() if re.search("--requirement|--constraint", line)]
    for line in installs:
        assert "--require-hashes --no-deps" in line or "--constraint requirements-torch.lock" in line
    assert len(installs) == 2


def test_developers_have_the_images_packages_in_the_same_versions() -> None:
    def here(lock: dict[str, Requirement]) -> dict[str, str]:
        # Markers are compared by what they say of this system: a developer's package may add another's to them.
        return {name: str(each.specifier) for name, each in lock.items() if each.marker is None or each.marker.evaluate()}

    assert here(RUN).items() <= here(ALL).items()


def test_torch_is_of_the_version_that_the_project_names_and_brings_nothing_of_the_rest() -> None:
    direct = next(text for text in PROJECT["project"]["dependencies"] if text.startswith("torch"))
    assert str(TORCH["torch"]) == direct
    assert not TORCH.keys() & RUN.keys()
    assert all(str(TORCH[name]) == str(ALL[name]) for name in TORCH.keys() & ALL.keys())
    assert any(name.startswith("nvidia-") for name in TORCH)


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


def test_the_images_python_is_the_projects() -> None:
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.12"
    for name in ("Dockerfile", "Dockerfile.cpu"):
        assert "ARG PYTHON_IMAGE=python:3.11." in (ROOT / "infra" / name).read_text()
