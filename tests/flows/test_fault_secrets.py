"""A secret among the variables of a run is in nothing that the run leaves: no log, card, artifact, parameter, tag, or code package."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
from canary import files_with
from real_flow import CANARY, FLOW, ROOT, SECRETS, FlowRun


def holders(folder: Path, wanted: str) -> list[str]:
    """Return what below a folder holds a text, packed or not, and in tables too."""
    tables = [path for path in folder.rglob("*.parquet") if wanted in str(pq.read_table(path).to_pylist())]
    return [*files_with(folder, wanted), *map(str, tables)]


def test_no_file_of_a_run_holds_a_secret_of_its_environment(first_run: FlowRun) -> None:
    assert first_run.succeeded, first_run.output[-3000:]
    folder = first_run.home.parent  # The working directory, with Metaflow's own folder in it.
    assert holders(folder, CANARY) == []
    assert CANARY not in first_run.output
    # The search finds what is there, packed or drawn.
    found = [
        *holders(folder, "boards.num_train"),
        *holders(folder, first_run.data.join_boards_output["output_hash"]),
        *holders(folder, "Verdict: "),
    ]
    for place in ("mlflow.db", ".metaflow/ChessGrpo/data/", "outputs/check_boards", "mf.cards/"):
        assert any(place in name for name in found), f"nothing found in {place}"
    assert any(name.endswith(".parquet") for name in holders(first_run.home, "endgame"))


def test_the_code_package_holds_code_and_no_secret(tmp_path: Path) -> None:
    checkout, packed = tmp_path / "checkout", tmp_path / "packed"
    packed.mkdir()
    for name in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for place in (checkout, checkout / "flows", checkout / "steps"):
        for name in (".env", "credentials", "secrets.json", "settings.yaml", ".aws/config.py"):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(f"password = '{CANARY}'")
    command = [sys.executable, str(checkout / "flows" / FLOW.name), "package", "save", str(packed / "package.tgz")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, **SECRETS})
    assert done.returncode == 0, done.stderr
    with contextlib.closing(tarfile.open(packed / "package.tgz")) as archive:
        names = [member.name for member in archive]
    for wanted in (
        "chess_grpo.py",
        "before_metaflow.py",
        "grpo/settings/presets/smoke.toml",
        "grpo/viewer/pages/board.js",
        "data_checks/dataset.py",
    ):
        assert any(name.endswith(wanted) for name in names), f"{wanted} is left out"
    ours = [name for name in names if re.search(r"(^|/)(steps|grpo|data_checks)/", name) and "metaflow" not in name]
    assert {Path(name).suffix for name in ours} == {".py", ".toml", ".html", ".css", ".js", ".j2", ".lock"}
    assert holders(packed, CANARY) == []
    assert CANARY not in done.stdout + done.stderr
