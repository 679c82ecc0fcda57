"""The images hold what the steps need, pinned, and nothing else: rules read from the Dockerfile and locks; what needs no docker is run."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "infra" / "Dockerfile"
MADE_OF = {
    "pyproject.toml",
    "requirements-run.lock",
    "requirements-torch.lock",
    "infra/install.sh",
    "infra/stockfish.sha256",
    "infra/entrypoint.sh",
}
BASE = r"^ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-bookworm\nFROM \$\{PYTHON_IMAGE\}$"


def test_an_image_is_pinned_without_root_without_secrets_and_made_of_six_files() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(BASE, text, re.MULTILINE)
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert "\nRUN" not in text.partition("\nUSER")[2]
    assert not re.search(r"^(ADD|.*--mount=type=secret|.*\b(curl|wget|pip install))", text, re.MULTILINE)
    assert not re.search(r"SECRET|TOKEN|PASSWORD|CREDENTIAL", text)
    copied = [word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert {word for word in copied if not word.startswith("--")} == MADE_OF
    assert "METAFLOW_SKIP_INSTALL_DEPENDENCIES=1" in text
    assert 'ENTRYPOINT ["chess-grpo-entrypoint"]' in text
    assert 'licenses="MIT AND GPL-3.0-or-later"' in text, "Stockfish and python-chess are passed on with our files"


def test_nothing_goes_to_the_builder_but_what_the_images_are_made_of() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules[1:]} == MADE_OF


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files that an image is made of, in a folder of their own: what is left out of the image is left out here."""
    for name in MADE_OF:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def install(folder: Path, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / "infra" / "install.sh", *words], env=environment, capture_output=True, text=True, check=False)


def test_an_image_is_not_built_on_another_stockfish(copied: Path) -> None:
    if not Path("/usr/games/stockfish").exists():
        pytest.skip("no Debian Stockfish to be taken for another one: apt-get install stockfish")
    sums = copied / "infra" / "stockfish.sha256"
    sums.write_text(re.sub(r"(?m)^[0-9a-f]{4}", "0000", sums.read_text()))
    refused = install(copied, str(copied / "venv"), "--image")
    assert refused.returncode == 1
    assert "stockfish.sha256" in refused.stderr
    assert not (copied / "venv").exists()


def without_python(folder: Path, uv: str) -> dict[str, str]:
    """Return an environment whose PATH has the shell's programs, no Python, and this uv."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "id", "grep", "cat", "sha256sum", "cut", "rm", "mkdir", "cp", "sed", "tr", "uname"):
        (programs / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    (programs / "uv").write_text(f"#!/bin/sh\n{uv}\n")
    (programs / "uv").chmod(0o755)
    return {"PATH": str(programs), "CHESS_GRPO_STOCKFISH": "/an/engine"}


def test_where_there_is_no_python_uv_gets_one(copied: Path) -> None:
    # It is no Python either, but says its version, and then that it was asked to make the environment.
    python = copied / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 3.11 && exit\necho "asked: $@" >&2\nexit 3\n')
    python.chmod(0o755)
    (copied / "requirements.lock").touch()
    done = install(copied, "env", environment=without_python(copied, f'case "$2" in find) echo {python} ;; esac'))
    assert "asked: -m venv env" in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("given", [{}, {"PYTHON": "/nowhere/python3.12"}])
def test_without_any_python_the_message_names_what_to_install(copied: Path, given: dict[str, str]) -> None:
    done = install(copied, "env", environment=without_python(copied, "exit 1") | given)
    assert done.returncode == 1
    assert re.search("name (one|another): make PYTHON", done.stderr)
    assert not (copied / "env").exists()


def test_the_newest_python_that_runs_is_taken_and_another_version_is_refused(copied: Path) -> None:
    environment = without_python(copied, "exit 1")
    for version, fails in (("3.13", 1), ("3.12", 0), ("3.11", 0), ("3.10", 0)):
        program = copied / "programs" / f"python{version}"
        program.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo {version} && exit {fails}\necho "asked: {version} $@" >&2\nexit 3\n')
        program.chmod(0o755)
    (copied / "requirements.lock").touch()
    assert "asked: 3.12 -m venv env" in install(copied, "env", environment=environment).stderr
    assert "Python 3.10" in install(copied, "env", environment=environment | {"PYTHON": "python3.10"}).stderr


def make_python(folder: Path, log: Path) -> None:
    """Make a Python 3.11 that says what it is asked for."""
    python = folder / "programs" / "python3.11"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in -c*) echo 3.11 ;;\n'
        '"-m venv"*) rm -rf env/bin; mkdir -p env/bin env/lib/python3.11; cp "$0" env/bin/python\n'
        'echo "command = $0 -m venv $PWD/env" >env/pyvenv.cfg; echo "$*" >&2 ;;\n'
        "*'pip config list') echo \":env:.find-links='/a /b'\"; echo \"global.find-links='/c'\"; echo \"global.index-url='http://i'\" ;;\n"
        f'*) echo "$*" >>{log} ;; esac\n'
    )
    python.chmod(0o755)
    (folder / "requirements-uv.lock").touch()


@pytest.mark.parametrize("change", ["none", "no Python", "copied", "dead link", "older Python"])
def test_an_environment_is_complete_where_it_was_made_and_while_its_python_runs(change: str, copied: Path, tmp_path: Path) -> None:
    folder, environment = copied, without_python(copied, "true")
    make_python(copied, copied / "log")
    assert install(copied, "env", environment=environment).returncode == 0
    if change == "no Python":
        (copied / "programs" / "python3.11").unlink()
    elif change == "copied":
        folder = tmp_path / "copy"
        shutil.copytree(copied, folder, symlinks=True, ignore=shutil.ignore_patterns("copy"))
    elif change == "dead link":
        (copied / "env" / "bin" / "python").unlink()
        (copied / "env" / "bin" / "python").symlink_to("/nowhere/python3.11")
    elif change == "older Python":
        (copied / "env" / "lib" / "python3.11").rename(copied / "env" / "lib" / "python3.10")
    again = install(folder, "env", environment=environment)
    assert again.returncode == 0, again.stderr
    is_complete = change in ("none", "no Python")
    assert bool(again.stdout) != is_complete
    assert ("-m venv --clear env" in again.stderr) != is_complete


@pytest.mark.parametrize("works", [True, False])
def test_uv_gets_the_indexes_of_pip_and_where_it_fails_pip_installs(copied: Path, works: bool) -> None:
    log = copied / "log"
    environment = without_python(
        copied, f'echo "uv $UV_DEFAULT_INDEX $UV_INDEX $UV_FIND_LINKS: $*" >>{log}; {"true" if works else "false"}'
    )
    make_python(copied, log)
    done = install(copied, "env", environment=environment)
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    by_uv = [line for line in lines if line.startswith("uv ")]
    assert len(by_uv) == 4
    assert all(line.startswith("uv http://i  /a,/b: pip install ") for line in by_uv)
    by_pip = [line for line in lines if line.startswith("-m pip install ")]
    assert [line.split()[-1] for line in by_pip] == ([] if works else [line.split()[-1] for line in by_uv])
    assert not (copied / "env" / "installing").exists()


@pytest.mark.prove
def test_the_environment_of_an_image_has_no_tool_and_runs_the_flow(copied: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "image"
    made = install(copied, str(prefix), "--image")
    assert made.returncode == 0, made.stderr
    python = prefix / "bin" / "python"
    listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True).stdout
    installed = {line.partition("==")[0].lower().replace("_", "-") for line in listed.splitlines()}
    assert installed & {"pytest", "mypy", "ruff", "moto", "hypothesis", "chess-grpo"} == set()
    code = tmp_path / "code"
    for package in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(ROOT / package, code / package)
    variables = {"HOME": str(tmp_path), "METAFLOW_USER": "tester", "CHESS_GRPO_DEVICE": "cpu"}
    environment = {"PATH": f"{prefix}/bin:/usr/games:/usr/bin:/bin", **variables}
    command = [python, "flows/chess_grpo.py", "--config-value", "settings", f'preset = "{ROOT}/tests/presets/language-smoke.toml"', "run"]
    ran = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert sys.prefix not in ran.stdout + ran.stderr


# Locks.


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("steps", "grpo", "data_checks", "flows")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lines(name: str) -> list[str]:
    lines = (ROOT / name).read_text().replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def read_lock(name: str) -> dict[str, Requirement]:
    requirements = (Requirement(line.partition("--hash")[0]) for line in read_lines(name))
    return {plain(requirement.name): requirement for requirement in requirements}


LOCKS = {name: read_lock(f"requirements{name}.lock") for name in ("", "-run", "-torch", "-uv")}
ALL, RUN, TORCH, _ = LOCKS.values()


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


@pytest.mark.parametrize("name", sorted(LOCKS.keys() - {"-torch"}))
def test_a_lock_has_the_hashes_of_every_package(name: str) -> None:
    lines = (" ".join(line.split()) for line in read_lines(f"requirements{name}.lock"))
    assert [line for line in lines if not re.search(r"( --hash=sha256:[0-9a-f]{64})+$", line)] == []
