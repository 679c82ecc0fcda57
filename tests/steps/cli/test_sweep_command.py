"""`chess-grpo sweep` with runs that only say what came out: what is run, what is skipped after a kill, and what the table has."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from logged_runs import LoggedRun, log_run, machine_of
from scipy import stats

from grpo.base.files import read_json
from grpo.engine.identity import EngineIdentity
from grpo.statistics.intervals import elo
from steps.cli import sweep as sweep_command
from steps.runs.index import read_runs
from steps.runs.sweep_plan import PlannedRun, run_id_file
from steps.runtime.machine import Machine
from steps.store.file_lock import file_lock
from steps.tracking.outages import RetryPolicy
from steps.tracking.tags import PARENT, RUN, STEP, SWEEP

SCORES = {0: (0.6, 0.55, 0.65), 1: (0.65, 0.6, 0.7), 2: (0.5, 0.45, 0.55)}
"""Seed -> score as played."""
RATES = ("--set", "grpo.learning_rate=1e-3,2e-3")


@dataclass
class Flows:
    """Stands for the flow: logs a run at once, or fails, or is killed in the middle of one."""

    started: list[str] = field(default_factory=list)
    fails_at: str = ""
    killed_at: str = ""

    def __call__(self, run: PlannedRun, machine: Machine, log: Path) -> int:
        self.started.append(run.name)
        name = f"{1000 + len(self.started)}"
        path = machine.home / run_id_file(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        log.write_text(f"run {name}")
        assert f"seed = {run.seed}\n" in f"{run.launch.text}seed = 0\n"
        if run.name == self.killed_at:
            log_run(machine, LoggedRun(name=name, settings=run.launch.text, last="baseline"), ends=False)
            raise KeyboardInterrupt
        if run.name == self.fails_at:
            return 1
        better = SCORES[run.seed][1] > 0.5
        log_run(
            machine,
            LoggedRun(
                name=name,
                settings=run.launch.text,
                score=SCORES[run.seed],
                rating=(700.0 + run.seed, 600.0, 800.0),
                verdict="better" if better else "no improvement shown",
                ladder_gain=(40.0 + run.seed, 10.0, 70.0),
            ),
        )
        return 0


@pytest.fixture
def home(tmp_path: Path, give_tables: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(give_tables(tmp_path / "home")))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("grpo.engine.identity.identify", lambda _: EngineIdentity(name="Stockfish 15.1", sha256="0" * 64))
    monkeypatch.setattr("steps.store.versions.hash_of_all_steps", lambda: "this code")
    return tmp_path / "home"


@pytest.fixture
def flows(home: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    made = Flows()
    monkeypatch.setattr(sweep_command, "start_flow", made)
    return made


Sweep = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sweep(flows: Flows, console: Sweep) -> Sweep:
    return partial(console, "sweep", "test")


def only(home: Path, name: str) -> Path:
    [path] = (home / "sweeps").glob(f"*/{name}")
    return path


# Running.


def test_every_run_is_started_once_and_a_second_time_none_and_the_page_and_mlflow_have_all(sweep: Sweep, flows: Flows, home: Path) -> None:
    from mlflow.tracking import MlflowClient

    code, out, _ = sweep("--seeds", "0", "1", *RATES)
    assert code == 0
    assert flows.started == [f"grpo.learning_rate = {rate}, seed {seed}" for seed in (0, 1) for rate in ("1e-3", "2e-3")]
    assert "4 runs (combinations of settings: 2, seeds: 2), of which 0 have finished already" in out
    before = only(home, "sweep.json").read_text()
    code, again, _ = sweep("--seeds", "0", "1", *RATES)
    assert code == 0
    assert len(flows.started) == 4
    assert "of which 4 have finished already" in again
    assert only(home, "sweep.json").read_text() == before
    page = only(home, "sweep.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == ["grpo.learning_rate = 1e-3", "grpo.learning_rate = 2e-3"]
    assert "`chess-grpo sweep test --seeds 0 1 --set grpo.learning_rate=1e-3,2e-3`" in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * 6
    assert {line.count("|") for line in rows} == {8}
    assert "| 0 | better | +70 [+35, +108] |" in page
    # MLflow has one run of the sweep, with means and table, and its runs as children.
    uri = machine_of(home).tracking_uri
    client = MlflowClient(uri, registry_uri=uri)
    [experiment] = [each.experiment_id for each in client.search_experiments() if each.name == "chess-grpo"]
    [parent] = client.search_runs([experiment], f"tags.`{STEP}` = 'sweep'")
    assert parent.info.run_name.startswith("sweep test ")
    assert parent.info.status == "FINISHED"
    children = client.search_runs([experiment], f"tags.`{PARENT}` = '{parent.info.run_id}'")
    assert sorted(child.data.tags[RUN] for child in children) == ["1001", "1002", "1003", "1004"]
    assert {child.data.tags[SWEEP] for child in children} == {parent.data.tags[SWEEP]}
    gains = client.get_metric_history(parent.info.run_id, "sweep/gain_as_played")
    mean = (elo(0.6) + elo(0.65)) / 2
    assert [(each.step, each.value) for each in gains] == [(1, pytest.approx(mean)), (2, pytest.approx(mean))], "logged once"
    assert sorted(each.path for each in client.list_artifacts(parent.info.run_id)) == ["sweep.json", "sweep.md"]
    assert len(read_runs(machine_of(home))) == 4, "a sweep is no flow run"


@pytest.mark.prove
def test_a_kill_between_a_runs_end_and_the_table_costs_nothing(sweep: Sweep, flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    original = sweep_command._record
    with monkeypatch.context() as patch:
        patch.setattr(sweep_command, "_record", lambda found, machine, **given: original(found, machine) if not flows.started else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sweep("--seeds", "0", "1")
    assert flows.started == ["seed 0"]
    assert sweep("--seeds", "0", "1")[0] == 0
    assert flows.started == ["seed 0", "seed 1"]


def test_after_a_failed_run_the_others_go_on_and_the_end_says_so(sweep: Sweep, flows: Flows, home: Path) -> None:
    flows.fails_at = "seed 1"
    code, out, err = sweep("--seeds", "0", "1", "2")
    assert code == 1
    assert flows.started == ["seed 0", "seed 1", "seed 2"]
    assert "[2/3] FAILED with exit code 1" in out
    assert "1 of 3 runs did not finish: seed 1. Fix the cause, which is in the log of each, and run the same command again" in err
    assert "mean over 2, between runs" in out
    flows.fails_at = ""
    assert sweep("--seeds", "0", "1", "2")[0] == 0
    assert flows.started[3:] == ["seed 1"]


def test_show_writes_nothing(sweep: Sweep, flows: Flows, home: Path) -> None:
    before = sorted(home.iterdir())
    code, out, _ = sweep("--seeds", "0", "1", "--show")
    assert code == 0
    assert out.count("not run") == 2
    assert sorted(home.iterdir()) == before
    assert flows.started == []


def test_two_sweeps_of_one_home_do_not_run_at_once(sweep: Sweep, flows: Flows, home: Path) -> None:
    (home / "sweeps").mkdir()
    with file_lock(home / "sweeps" / ".lock", what="a test"):
        code, _, err = sweep("--seeds", "0")
    assert code == 1
    assert "a sweep of this home is being made by" in err
    assert flows.started == []


# The table.


def test_rows_have_each_runs_numbers_and_the_means_both_intervals(sweep: Sweep, home: Path) -> None:
    _, out, _ = sweep("--seeds", "0", "1", "2")
    facts = read_json(only(home, "sweep.json"))
    gains = [elo(SCORES[seed][0]) for seed in (0, 1, 2)]
    for row, seed in zip(facts["runs"], (0, 1, 2), strict=True):
        assert row["values"]["gain_as_played"] == pytest.approx(
            dict(zip(("value", "low", "high"), map(elo, SCORES[seed]), strict=True)), abs=1e-9
        )
        assert row["values"]["ladder_candidate"] == {"value": 700.0 + seed, "low": 600.0, "high": 800.0}
        assert row["values"]["ladder_gain_as_played"] == {"value": 40.0 + seed, "low": 10.0, "high": 70.0}
        assert row["run"] == f"{1001 + seed}"
    [pooled] = facts["pooled"]
    assert (pooled["num_runs"], pooled["verdicts"]) == (3, {"better": 2, "no improvement shown": 1})
    expected = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    gain = pooled["values"]["gain_as_played"]
    assert gain["between"] == pytest.approx({"value": sum(gains) / 3, "low": expected.low, "high": expected.high})
    below = sum((elo(low) - elo(score)) ** 2 for score, low, _ in SCORES.values()) ** 0.5 / 3
    assert gain["within"]["low"] == pytest.approx(sum(gains) / 3 - below)
    ladder = pooled["values"]["ladder_gain_as_played"]
    assert ladder["between"] == pytest.approx({"value": 41.0, "low": 41 - 4.302653 / 3**0.5, "high": 41 + 4.302653 / 3**0.5})
    lines = out.splitlines()
    start = lines.index("test")
    table = [re.sub(r"  +", " | ", line.strip()) for line in lines[start + 1 : start + 7]]
    assert table == [
        "seed | verdict | gain, as played | gain, adjudicated | candidate's rating | ladder gain | ladder gain, adjudicated",
        "0 | better | +70 [+35, +108] | +147 [+108, +191] | +700 [+600, +800] | +40 [+10, +70] | +40 [+10, +70]",
        "1 | better | +108 [+70, +147] | +191 [+147, +241] | +701 [+600, +800] | +41 [+10, +70] | +41 [+10, +70]",
        "2 | no improvement shown | +0 [-35, +35] | +70 [+35, +108] | +702 [+600, +800] | +42 [+10, +70] | +42 [+10, +70]",
        "mean over 3, between runs | 2 better, 1 no improvement shown | +59 [-76, +195] | +136 [-15, +288] | +701 [+699, +703]"
        " | +41 [+39, +43] | +41 [+39, +43]",
        "mean over 3, within runs | +59 [+39, +81] | +136 [+113, +162] | +701 [+643, +758] | +41 [+23, +58] | +41 [+23, +58]",
    ]
    assert "Between runs: the mean over seeds with the interval of Student's t, n - 1" in out
    assert "Within runs: the same mean with the interval that the games of these runs leave" in out


def test_while_the_tracking_store_is_away_at_the_end_the_table_is_still_written(
    sweep: Sweep, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.tracking.sweep_run.RetryPolicy", lambda: RetryPolicy(between_asks=()))
    monkeypatch.setattr("steps.tracking.sweep_run._log", lambda *_: (_ for _ in ()).throw(OSError("the cable is out")))
    code, out, _ = sweep("--seeds", "0")
    assert code == 0
    assert "WARNING: the sweep's table is not logged to" in out
    assert "(the cable is out); the same command logs it later" in out
    assert json.loads(only(home, "sweep.json").read_text())["runs"][0]["verdict"] == "better"
