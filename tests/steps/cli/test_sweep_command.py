"""`chess-grpo sweep` with runs that only say what came out: what is run, what is skipped after a kill, and what the table has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from made_documents import made_reports, made_results
from made_runs import MadeRun, machine_of, make_run
from presets import TEST, tiny_settings
from scipy import stats

from grpo.engine.identity import EngineIdentity
from grpo.match.intervals import Estimate
from grpo.settings.tree import ConfigError, read_settings
from steps.cli import sweep as sweep_command
from steps.cli.sweep import sweep_tables
from steps.names import RESULTS
from steps.track.sweep import SWEEP, PlannedRun, SweepRow, plan_sweep

RATES = "grpo.learning_rate=1e-3,2e-3"
ELO = {0: 10.0, 1: 50.0, 2: -40.0}
"""Seed -> gain on the ladder."""


@dataclass
class Flows:
    """Stands for the flow: makes a run at once, or fails, or is killed in the middle of one."""

    home: Path
    started: list[str] = field(default_factory=list)
    fails_at: str = ""
    killed_at: str = ""

    def __call__(self, run: PlannedRun, sweep: str, log: Path) -> int:
        self.started.append(run.name)
        log.write_text("what a flow prints")
        made = MadeRun(name=f"{1000 + len(self.started)}", settings=run.launch.text, tags={SWEEP: f"{sweep}/{run.key}"})
        if run.name == self.killed_at:
            made.until, made.ends = "baseline", "running"
            make_run(machine_of(self.home), made)
            raise KeyboardInterrupt
        if run.name == self.fails_at:
            return 1
        results = made_results(self.home / "made" / made.name, made_reports(elo=ELO[run.seed]))
        made.files = {"report": {RESULTS: results.model_dump(mode="json")}}
        make_run(machine_of(self.home), made)
        return 0


@pytest.fixture
def flows(home: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    monkeypatch.setattr("grpo.engine.identity.identify", lambda _: EngineIdentity(name="Stockfish 15.1", sha256="0" * 64))
    monkeypatch.setattr(sweep_command, "_code", lambda _: "this code")
    made = Flows(home)
    monkeypatch.setattr(sweep_command, "start_flow", made)
    return made


Sweep = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sweep(flows: Flows, console: Sweep) -> Sweep:
    return partial(console, "sweep", TEST)


# Planned.


def planned(*grid: str, settings: str = TEST, seeds: tuple[int, ...] = (0, 1), made_by: str = "code and engine") -> list[PlannedRun]:
    return plan_sweep(settings, seeds, grid, made_by=made_by)


def test_every_combination_is_run_with_every_seed_and_seed_by_seed() -> None:
    found = [read_settings(run.launch.text) for run in planned(RATES, "grpo.group_size=4,8")]
    assert [(each.seed, each.grpo.learning_rate, each.grpo.group_size) for each in found] == [
        (seed, rate, size) for seed in (0, 1) for rate in (1e-3, 2e-3) for size in (4, 8)
    ]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("grpo.lerning_rate=1e-3", "unknown key grpo.lerning_rate"),
        ("grpo.num_steps", "give KEY=A,B"),
        ("seed=1,2", "--seeds 1 2"),
        ("grpo.num_steps=3,3", "two runs are the same: grpo.num_steps = 3, seed 0"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(grid: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(grid)


def test_a_run_keeps_its_key_in_a_larger_sweep_and_loses_it_with_other_code_or_settings(tmp_path: Path) -> None:
    def keys(plan: list[PlannedRun]) -> set[str]:
        return {run.key for run in plan}

    usual = tiny_settings().grpo.learning_rate
    assert keys(planned(f"grpo.learning_rate={usual}")) == keys(planned())
    assert keys(planned(RATES)) < keys(planned(RATES, seeds=(0, 1, 2)))
    assert not keys(planned(made_by="other code")) & keys(planned())
    path = tmp_path / "my.toml"
    path.write_text(f'preset = "{TEST}"\ngrpo.num_steps = 4\n')
    [run] = planned(settings=str(path), seeds=(0,))
    path.write_text(f'preset = "{TEST}"\ngrpo.num_steps = 5\n')
    assert read_settings(run.launch.text).grpo.num_steps == 4, "a file that is edited under way changes no planned run"
    assert planned(settings=str(path), seeds=(0,))[0].key != run.key


# Run.


def test_every_run_is_started_once_and_a_second_time_none(sweep: Sweep, flows: Flows, home: Path) -> None:
    code, out, _ = sweep("--seeds", "0", "1", "--set", RATES)
    assert code == 0
    assert flows.started == [f"grpo.learning_rate = {rate}, seed {seed}" for seed in (0, 1) for rate in (0.001, 0.002)]
    assert "4 runs, of which 0 have finished already" in out
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    code, again, _ = sweep("--seeds", "0", "1", "--set", RATES)
    assert (code, len(flows.started)) == (0, 4)
    assert "of which 4 have finished already" in again
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_a_killed_run_is_run_again_and_after_a_failed_one_the_others_go_on(sweep: Sweep, flows: Flows) -> None:
    flows.killed_at = "seed 1"
    assert sweep("--seeds", "0", "1", "2")[0] == 130
    flows.killed_at, flows.fails_at = "", "seed 1"
    code, out, err = sweep("--seeds", "0", "1", "2")
    assert code == 1
    assert flows.started == ["seed 0", "seed 1", "seed 1", "seed 2"]
    assert "[2/3] FAILED" in out
    assert "mean over 2, between runs" in out
    assert "1 of 3 runs did not finish: seed 1." in err
    flows.fails_at = ""
    assert sweep("--seeds", "0", "1", "2")[0] == 0
    assert flows.started[4:] == ["seed 1"]


def test_show_writes_nothing(sweep: Sweep, flows: Flows, home: Path) -> None:
    code, out, _ = sweep("--seeds", "0", "1", "--show")
    assert (code, out.count("not run")) == (0, 2)
    assert not home.exists()
    assert flows.started == []


# The tables.


def row(seed: int, gain: float) -> SweepRow:
    found = {"gain": Estimate(value=gain, low=gain - 30, high=gain + 30)}
    return SweepRow(planned=planned(seeds=(seed,))[0], verdict="better", gains=found, is_finished=True)


def test_means_come_with_the_interval_between_runs_and_that_within_them() -> None:
    values = (100.0, 160.0, 250.0)
    unstarted = SweepRow(planned=planned(seeds=(9,))[0], verdict="not run", gains={}, is_finished=False)
    [(_, table)] = sweep_tables([*(row(seed, value) for seed, value in enumerate(values)), unstarted])
    expected, half = stats.ttest_1samp(values, 0).confidence_interval(0.95), (3 * 30**2) ** 0.5 / 3
    assert table[4:7] == [
        ["9", "not run", "-"],
        ["mean over 3, between runs", "", f"+170 [{expected.low:+.0f}, {expected.high:+.0f}]"],
        ["mean over 3, within runs", "", f"+170 [{170 - half:+.0f}, {170 + half:+.0f}]"],
    ]
    [(_, one)] = sweep_tables([row(0, 100)])
    assert one[-2] == ["mean over 1, between runs", "", "-"], "one seed has no interval"
