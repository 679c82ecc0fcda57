"""A secret among the variables of a run is in nothing that the run leaves: no log, card, artifact, parameter, tag, or code package."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from canary import files_with
from real_flow import CANARY, FLOW, ROOT, SECRETS, FlowRun


def holders(folder: Path, wanted: str) -> list[str]:
    """Return what below a folder holds a text, packed or not, and in tables too."""
    tables = [path for path in folder.rglob("*.parquet") if wanted in str(pq.read_table(path).to_pylist())]
    return [*files_with(folder, wanted), *map(str, tables)]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with a secret in files that lie about."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for place in (folder, folder / "flows", folder / "steps"):
        for name in (".env", "credentials", "secrets.json", "id_rsa", "settings.yaml"):
            (place / name).write_text(f"password = {CANARY}")
        (place / ".aws").mkdir()
        (place / ".aws" / "config.py").write_text(f'password = "{CANARY}"')
    return folder


def test_no_file_of_a_run_holds_a_secret_of_its_environment(first_run: FlowRun) -> None:
    assert first_run.succeeded, first_run.output[-3000:]
    folder = first_run.home.parent  # The working directory, with Metaflow's own folder in it.
    assert holders(folder, CANARY) == []
    assert CANARY not in first_run.output
    assert CANARY not in first_run.card


def test_the_search_finds_what_is_packed(first_run: FlowRun, tmp_path: Path) -> None:
    folder = first_run.home.parent
    found = holders(folder, "boards.num_train") + holders(folder, first_run.data.boards["output_hash"])
    for place in ("mlflow.db", ".metaflow/ChessGrpo/data/", "outputs/check_boards"):
        assert any(place in name for name in found), f"nothing found in {place}"
    made = tmp_path / "made.tgz"
    with tarfile.open(made, "w:gz") as archive:
        for name in SECRETS:
            data = SECRETS[name].encode()
            member = tarfile.TarInfo(f"{name}.py")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert holders(tmp_path, CANARY) == [str(made)]
    assert holders(first_run.home, "endgame"), "a word of the tables"


def test_the_code_package_holds_code_and_no_secret(checkout: Path, tmp_path: Path) -> None:
    package = tmp_path / "package.tgz"
    command = [sys.executable, str(checkout / "flows" / FLOW.name), "package", "save", str(package)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, **SECRETS})
    assert done.returncode == 0, done.stderr
    with contextlib.closing(tarfile.open(package)) as archive:
        names = [member.name for member in archive]
    for wanted in (
        "chess_grpo.py",
        "steps/training_loop.py",
        "grpo/settings/presets/smoke.toml",
        "grpo/match/pages/board.js",
        "data_checks/dataset.py",
    ):
        assert any(name.endswith(wanted) for name in names), f"{wanted} is left out"
    ours = [name for name in names if re.search(r"(^|/)(steps|grpo|data_checks)/", name) and "metaflow" not in name]
    assert {Path(name).suffix for name in ours} == {".py", ".toml", ".html", ".css", ".js", ".j2", ".lock"}
    assert holders(tmp_path, CANARY) == []
    assert CANARY not in done.stdout + done.stderr
