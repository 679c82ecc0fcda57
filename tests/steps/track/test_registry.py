"""Aliases move as their rule says, each preset has its own, and runs that end together or register twice break none of it."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import machine_of
from tracked_runs import TrackedRun, client_of, forget, told

from steps.run.machine import Machine, sqlite_address
from steps.track import registry
from steps.track.client import TrackingStore
from steps.track.publish import publish_all
from steps.track.registry import Version, is_better_peak

HELD = Version(preset="p", number=3, run="7", role="peak", output_hash="h", policy_step=150, initial_weights="w", low=0.55)


@pytest.mark.parametrize(
    ("offered", "held", "moves"),
    [
        (replace(HELD, low=0.5501), HELD, True),
        (replace(HELD, low=0.5499), HELD, False),
        (HELD, HELD, False),
        (replace(HELD, low=None), HELD, False),
        (replace(HELD, low=0.1), replace(HELD, low=None), True),
        (replace(HELD, low=None, initial_weights="x", number=5), HELD, True),
        (replace(HELD, initial_weights="x", number=1), HELD, False),
    ],
)
def test_peak_moves_to_the_better_of_comparable_policies_and_to_the_newest_of_others(offered: Version, held: Version, moves: bool) -> None:
    assert is_better_peak(offered, held) == moves


@pytest.fixture
def machine(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Machine:
    home = give_tables(tmp_path / "home")
    return machine_of(home, sqlite_address(home / "mlflow.db"))


@pytest.fixture(autouse=True)
def models_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.policies import mlflow_model

    def save_files(path: Path, **_: Any) -> None:
        path.mkdir()
        (path / "MLmodel").write_text("")

    monkeypatch.setattr(mlflow_model, "save_model", save_files)


@pytest.fixture
def finished(machine: Machine) -> Callable[..., TrackedRun]:
    """Return what publishes a run that has finished, with what its `select` decided."""
    names = iter("123456789")

    def make(*, preset: str = "default", **decided: Any) -> TrackedRun:
        run = TrackedRun(machine, next(names), preset=preset)
        run.select(**decided)
        assert run.publish() == ""
        return run

    return make


def named(name: str, machine: Machine, preset: str = "default") -> Version:
    return registry.named(name, machine)[preset]


def held(machine: Machine) -> dict[str, int]:
    found = client_of(machine.home).get_registered_model("chess-policy-default").aliases
    return {name: int(number) for name, number in found.items()}


def test_a_champion_is_replaced_only_by_who_has_beaten_that_one(
    finished: Callable[..., TrackedRun], machine: Machine, request: Any
) -> None:
    finished(candidate_weights="first", promoted=True, champion_step=100, replaces_previous=True)
    first = named("champion", machine)
    assert first.weights == "first"
    finished(candidate_weights="second", replaces_previous=True, previous_weights="another one")
    finished(candidate_weights="third", replaces_previous=False, previous_weights="first")
    assert named("champion", machine) == first
    finished(candidate_weights="fourth", replaces_previous=True, previous_weights="first")
    assert held(machine)["champion"] == 8


def test_a_run_of_another_preset_takes_no_alias_and_readers_tell_them_apart(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    """U3."""
    runs = {preset: finished(preset=preset, peak_low=low) for preset, low in (("default", 0.5), ("smoke", 0.6))}
    for preset, run in runs.items():
        peak, champion = (named(name, machine, preset) for name in ("peak", "champion"))
        assert [(each.number, each.role, each.run) for each in (peak, champion)] == [(1, "peak", run.name), (2, "champion", run.name)]
        assert named("v2", machine, preset) == champion
        assert champion.output_hash == (run.run.output_of("select") or {})["output_hash"]
    assert registry.named("v9", machine) == {}


def test_where_there_is_no_store_there_is_nothing_and_asking_makes_none(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, sqlite_address(tmp_path / "mlflow.db"))
    assert registry.named("champion", machine) == {}
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_registered_again_has_its_versions_once(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    run = finished()
    before = told(machine.home)
    forget(run)
    assert run.publish() == ""
    assert told(machine.home) == before
    assert publish_all(machine) == {}, "all is logged"
    assert registry.named("v3", machine) == {}


def test_of_two_runs_that_end_together_neither_takes_what_the_other_has_won(
    finished: Callable[..., TrackedRun], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, made = TrackedRun.publish, []
    monkeypatch.setattr(TrackedRun, "publish", lambda run: made.append(run) or "")
    for low in (0.6, 0.5, 0.55):
        finished(peak_low=low, replaces_previous=True, previous_weights="of nobody")
    threads = [threading.Thread(target=publish, args=(run,)) for run in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert named("peak", machine).low == 0.6
    assert named("champion", machine).number == 2


def test_two_first_runs_make_one_experiment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = TrackingStore(machine.tracking_uri)
    other, answers = TrackingStore(machine.tracking_uri), [None]
    found = other.client.get_experiment_by_name
    monkeypatch.setattr(other.client, "get_experiment_by_name", lambda name: answers.pop() if answers else found(name))
    assert other.experiment == tracking.experiment
