"""`chess-grpo sweep` with runs that only say what came out: what is run, what is skipped after a kill, and what the table has."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_documents import made_reports, made_results
from made_runs import MadeRun, machine_of, make_run
from presets import TEST, tiny_settings
from scipy import stats

from grpo.engine.identity import EngineIdentity
from grpo.settings.tree import ConfigError, read_settings
from grpo.statistics.intervals import Estimate
from steps.cli import sweep as sweep_command
from steps.cli.sweep import sweep_tables
from steps.names import RESULTS
from steps.track.sweep import SWEEP, SWEEP_VARIABLE, PlannedRun, SweepRow, plan_sweep

RATES = "grpo.learning_rate=1e-3,2e-3"
ELO = {0: 10.0, 1: 50.0, 2: -40.0}
"""Seed -> gain on the ladder."""


@dataclass
class Flows:
    """Stands for the flow's processes: makes a run at once, or fails, or is killed in the middle of one; by seed."""

    home: Path
    started: list[int] = field(default_factory=list)
    fails_at: int | None = None
    killed_at: int | None = None

    def __call__(self, words: list[str], *, env: dict[str, str], **_: Any) -> Any:
        *_, settings, _ = words
        self.started.append(seed := read_settings(settings).seed)
        made = MadeRun(name=f"{1000 + len(self.started)}", settings=settings, tags={SWEEP: env[SWEEP_VARIABLE]})
        if seed == self.killed_at:
            made.until, made.ends = "baseline", "running"
            make_run(machine_of(self.home), made)
            raise KeyboardInterrupt
        if seed != self.fails_at:
            results = made_results(self.home / "made" / made.name, made_reports(elo=ELO[seed]))
            made.files = {"report": {RESULTS: results.model_dump(mode="json")}}
            make_run(machine_of(self.home), made)
        lines = [b"2026-01-01 [1/pretrain/2 (pid 3)] pretrain: step 4 of 10; the run takes about 5 s more\n", b"pretrain: 9 of 10 steps\n"]
        return nullcontext(SimpleNamespace(returncode=int(seed == self.fails_at), stdout=lines))


@pytest.fixture
def flows(home: Path, monkeypatch: pytest.MonkeyPatch) -> Flows:
    monkeypatch.setattr("steps.run.outside.identify", lambda _: EngineIdentity(name="Stockfish 15.1", sha256="0" * 64))
    monkeypatch.setattr(sweep_command, "_code", lambda *_: "this code")
    made = Flows(home)
    monkeypatch.setattr("subprocess.Popen", made)
    return made


def planned(*grid: str, settings: str = TEST, seeds: tuple[int, ...] = (0, 1), code: str = "this code") -> list[PlannedRun]:
    return plan_sweep(settings, seeds, grid, inputs=lambda _: {"code": code})


def test_what_would_run_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="two runs are the same"):
        planned("grpo.num_steps=3,3")


def test_a_run_keeps_its_key_in_a_larger_sweep_and_loses_it_with_other_code_or_settings() -> None:
    def keys(plan: list[PlannedRun]) -> set[str]:
        return {run.key for run in plan}

    usual = tiny_settings().grpo.learning_rate
    assert keys(planned(f"grpo.learning_rate={usual}")) == keys(planned())
    assert keys(planned(RATES)) < keys(planned(RATES, seeds=(0, 1, 2)))
    assert not keys(planned(code="other code")) & keys(planned())


@pytest.mark.parametrize("named_by", ["boards.files", "boards.exclude", "evaluation.opening_book", "the lock"])
def test_a_run_loses_its_key_with_other_content_of_a_file(
    named_by: str, flows: Flows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, keys = tmp_path / "own.epd", []
    grid = [f'{named_by}="{file}"' if named_by == "evaluation.opening_book" else f'{named_by}=["{file}"]']
    if named_by == "the lock":
        grid = []
        monkeypatch.setattr(sweep_command, "LOCK", file)
    for content in ("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "4k3/8/8/8/8/8/3P4/4K3 w - - 0 1"):
        file.write_text(content)
        keys.append(plan_sweep(TEST, [0], grid, inputs=sweep_command.inputs_of(machine_of(flows.home)))[0].key)
    assert keys[0] != keys[1]


def test_a_date_is_refused_as_any_value_of_a_wrong_type(console: Callable[..., Any], flows: Flows) -> None:
    code, _, err = console("sweep", TEST, "--seeds", "0", "--set", "grpo.num_steps=2026-11-29")
    assert code == 1
    assert "grpo.num_steps" in err


def test_a_killed_run_is_run_again_after_a_failed_one_the_others_go_on_and_none_is_run_twice(
    flows: Flows, console: Callable[..., tuple[int, str, str]]
) -> None:
    sweep = partial(console, "sweep", TEST, "--seeds", "0", "1", "2")
    flows.killed_at = 1
    assert sweep()[0] == 130
    flows.killed_at, flows.fails_at = None, 1
    code, out, err = sweep()
    assert code == 1
    assert out.count("[1/3] pretrain: step 4 of 10; the run takes about 5 s more") == 0, "it had finished"
    assert out.count("[3/3] pretrain: step 4 of 10; the run takes about 5 s more") == 1
    assert "9 of 10 steps" not in out
    assert flows.started == [0, 1, 1, 2]
    assert "mean over 2, between runs" in out
    assert "1 of 3 runs did not finish: seed 1." in err
    flows.fails_at = None
    for _ in range(2):
        assert sweep()[0] == 0
        assert flows.started[4:] == [1]


def test_means_come_with_the_interval_between_runs_and_that_within_them_and_the_wider_is_marked() -> None:
    def row(seed: int, gain: float) -> SweepRow:
        found = {"gain": Estimate(value=gain, low=gain - 30, high=gain + 30)}
        return SweepRow(planned=planned(seeds=(seed,))[0], verdict="better", gains=found, is_finished=True)

    values = (100.0, 160.0, 250.0)
    [(_, table)] = sweep_tables([row(seed, value) for seed, value in enumerate(values)])
    expected, half = stats.ttest_1samp(values, 0).confidence_interval(0.95), (3 * 30**2) ** 0.5 / 3
    assert table[-2:] == [
        ["mean over 3, between runs", "", f"+170 [{expected.low:+.0f}, {expected.high:+.0f}] *"],
        ["mean over 3, within runs", "", f"+170 [{170 - half:+.0f}, {170 + half:+.0f}]"],
    ]
    [(_, alike)] = sweep_tables([row(seed, value) for seed, value in enumerate((100.0, 101.0, 102.0))])
    assert [line[-1].endswith(" *") for line in alike[-2:]] == [False, True], "the few runs agree by chance"
    [(_, one)] = sweep_tables([row(0, 100)])
    assert one[-2:] == [["mean over 1, between runs", "", "-"], ["mean over 1, within runs", "", "+100 [+70, +130]"]], (
        "no claim of one seed"
    )


@pytest.mark.parametrize("words", [(TEST, "--seeds", "0", "1"), ("--seeds", "0", "1", TEST)])
def test_the_settings_may_stand_before_the_seeds_or_behind_them(words: tuple[str, ...], console: Callable[..., Any], flows: Flows) -> None:
    assert console("sweep", *words)[0] == 0
    assert flows.started == [0, 1]


@pytest.mark.parametrize("words", [(), (TEST, "smoke")])
def test_a_sweep_of_none_or_two_settings_is_refused(words: tuple[str, ...], console: Callable[..., Any], flows: Flows) -> None:
    code, _, err = console("sweep", "--seeds", "0", *words)
    assert (code, flows.started) == (2, [])
    assert "give one preset or file" in err
