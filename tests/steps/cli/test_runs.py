"""`chess-grpo runs`, `show`, `compare` and `track`: what the records of a store say of its runs."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_documents import DIAGNOSIS, made_reports, made_results
from made_runs import MadeRun, machine_of, make_run

from steps.names import FINDINGS, RESULTS
from steps.run.machine import Machine
from steps.track import publish as publishing

FASTER = 'preset = "smoke"\ngrpo.learning_rate = 5e-3\nseed = 4'
ERROR = "rewards: every group is silent, so that there is nothing to learn"


DATA = "3,300 boards of engine games; dataset "


def document(folder: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    return {"report": {RESULTS: made_results(folder, made_reports(**changes)).model_dump(mode="json")}}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with two runs that finished, one that failed, and one whose process is gone."""
    folder = tmp_path_factory.mktemp("made")
    machine = machine_of(folder / "home")
    make_run(machine, MadeRun(name="1001", files=document(folder / "first")))
    origin = {"name": "1001/60", "run": "1001", "step": 60}
    make_run(machine, MadeRun(name="1002", settings=FASTER, origin=origin, files=document(folder / "second", score=0.5)))
    files = {"finetune": {FINDINGS: DIAGNOSIS.model_dump(mode="json")}}
    make_run(machine, MadeRun(name="1003", until="screen", ends="failed", error=ERROR, files=files))
    make_run(machine, MadeRun(name="1004", until="finetune", ends="running", launcher=gone_token()))
    return machine


def gone_token() -> str:
    """Return the token of a process that has ended."""
    script = "from steps.run.processes import own_token; print(own_token())"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stand for MLflow: give why a run cannot be published, by its id; all others can. Runs that were are noted."""
    away: dict[str, str] = {}

    def publish(view: Any, _: None) -> str:
        if view._run.name not in away:
            view._run.set_published()
        return away.get(view._run.name, "")

    monkeypatch.setattr(publishing._View, "publish", publish)
    return away


Type = Callable[..., str]


@pytest.fixture
def typed(
    machine: Machine, published: dict[str, str], console: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> Type:
    """Return what runs a command in that home, and returns all that it prints, without line breaks."""
    monkeypatch.setenv("CHESS_GRPO_HOME", str(machine.home))

    def command(*words: str, code: int = 0) -> str:
        found, out, err = console(*words)
        assert found == code, err
        return " ".join((out + err).split())

    return command


def test_runs_are_listed_with_verdict_origin_and_cause_and_one_whose_process_is_gone_is_over(typed: Type) -> None:
    listed = typed("runs")
    assert "run 1004 is over: its processes are gone" in listed
    places = [listed.index(f"{run} 20") for run in ("1004", "1003", "1002", "1001")]
    assert places == sorted(places), "the newest first"
    for words in (
        "killed in finetune",
        ERROR,
        "findings kl_trap",
        "run 1001, step 60",
        "grpo.learning_rate = 0.005",
        "verdict better. ",
        DATA,
    ):
        assert words in listed, words
    assert "is over: " not in typed("runs"), "said once"


def test_a_failed_run_is_shown_with_step_cause_remedy_and_the_command_that_goes_on(typed: Type) -> None:
    shown = typed("show", "1003")
    for words in (DATA, "failed in screen", ERROR, "To resume: `", "resume --origin-run-id 1003`", "Diagnosis: kl_trap"):
        assert words in shown, words
    assert "grpo.learning_rate = 0.005" in typed("show", "1002")


def test_a_run_whose_processes_are_gone_is_over_before_it_is_shown(
    tmp_path: Path, published: dict[str, str], console: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    make_run(machine_of(tmp_path / "home"), MadeRun(name="5", until="finetune", ends="running", launcher=gone_token()))
    _, out, err = console("show", "5")
    assert "run 5 is over" in err
    assert "running" not in out
    assert "\n  : " not in out


def test_the_command_that_goes_on_works_in_every_folder(typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "a room" / "python"
    python.parent.mkdir()
    python.touch()
    monkeypatch.setattr(sys, "executable", str(python))
    for folder in (Path(__file__).parents[3], tmp_path / "a room", tmp_path):
        monkeypatch.chdir(folder)
        program, flow, *_ = shlex.split(typed("show", "1003").partition("To resume: `")[2].partition("`")[0])
        assert (folder / program).is_file()
        assert (folder / flow).is_file()


def test_two_runs_are_compared_and_the_games_that_decide_are_named(typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = typed("compare", "1001", "1002")
    assert "Code may explain" not in compared, "it is the same"
    with monkeypatch.context() as patched:
        patched.setattr("steps.cli.compare.code_of", lambda run: f"commit {run.name}")
        assert "Code may explain differences: A commit 1001; B commit 1002" in typed("compare", "1001", "1002")
    assert "A 1001 " in compared
    assert "--pairs 300" in compared
    assert "both runs must have reached the step `report`" in typed("compare", "1001", "1003")


def test_everything_is_logged_is_said_only_when_no_run_is_left(typed: Type, published: dict[str, str]) -> None:
    typed("runs")  # What is gone is over.
    published["1003"] = "it is away"
    said = typed("track", code=1)
    assert ": 1 of 4 ended runs are incomplete: run 1003: it is away" in said
    assert "Everything" not in said
    published.clear()
    assert "Everything is logged: 4 ended runs of" in typed("track")
    published["1001"] = "its database is empty"
    assert "Everything is logged: 4 ended runs of" in typed("track"), "what was logged is not asked for again"
    assert "run 1001: its database is empty" in typed("track", "--again", code=1)
