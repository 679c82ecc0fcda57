"""The diagnosis of our own runs, in its quick form: healthy and failed ones on made-up boards; tests/proofs has the large form."""

from dataclasses import replace
from functools import cache

import pytest
from doubles import fake_arrays, lively_policy, some_boards
from made_histories import FAILED, HEALTHY, Lab, history_of, noisy

from grpo.control import alarms
from grpo.control.controller import ENTROPY_CRITICAL
from grpo.diagnosis import conditions, rules_entropy, rules_objective, rules_reward
from grpo.diagnosis.diagnose import Watch, diagnose
from grpo.diagnosis.history import History
from grpo.diagnosis.quantities import quantity_of
from grpo.metrics.table import Record

BOARDS = some_boards(64)
LAB = Lab(train=fake_arrays(BOARDS[:48]), heldout=fake_arrays(BOARDS[48:]), policy=lambda _: lively_policy())
SIZE = {"states_per_step": 32, "num_steps": 30, "steps_per_checkpoint": 10}
NAMES = ("smoke-no-games", "temperature-two-updates", "failure-as-zero")
CASES = {**HEALTHY, **FAILED}


@cache
def made(name: str) -> tuple[Record, ...]:
    """Return the records of a run."""
    return tuple(history_of(LAB, CASES[name], seed=0, **SIZE))


@pytest.mark.parametrize("name", NAMES)
def test_healthy_runs_raise_no_alarm_and_each_failure_is_named(name: str) -> None:
    assert CASES[name].shows in diagnose(History.of_records(made(name))).names


@pytest.mark.parametrize("name", NAMES)
def test_a_third_of_the_rows_says_the_same(name: str) -> None:
    for first in range(3):
        assert CASES[name].shows in diagnose(History.of_records(made(name)[first::3])).names, first


@pytest.mark.parametrize("name", NAMES[:2])
def test_noise_on_whatever_column_changes_no_verdict(name: str) -> None:
    columns = {column for record in made(name) for column in record.metrics if quantity_of(column) is not None}
    changed = [
        column for column in columns if CASES[name].shows not in diagnose(History.of_records(noisy(made(name), column, seed=0))).names
    ]
    assert changed == []


@pytest.mark.parametrize("name", NAMES)
def test_watched_live_it_finds_what_is_found_afterwards_and_each_thing_once(name: str) -> None:
    watch = Watch()
    found = [finding.name for record in made(name) for finding in watch.observe(record)]
    assert len(found) == len(set(found))
    if name in HEALTHY:
        assert found == []
    else:
        assert CASES[name].shows in found
    assert watch.diagnosis() == diagnose(History.of_records(made(name)))


def test_a_stop_at_critical_entropy_is_a_collapse_wherever_the_settings_draw_the_line() -> None:
    stop = {"critical_entropy": 2.0, "critical_window": 3, "recovery": {"kind": "stop"}}
    records = history_of(LAB, CASES["collapse"], seed=0, **{**SIZE, **stop})
    assert 3 < len(records) <= 30
    assert records[-1].metrics["grpo/entropy"] > 1, "by its numbers alone it has not collapsed"
    assert records[-1].events[-1].name == ENTROPY_CRITICAL
    found = diagnose(History.of_records(records))
    assert found.names == ("entropy_collapse",)
    plain = [replace(record, events=()) for record in records]
    assert diagnose(History.of_records(plain)).is_healthy


def test_a_stop_for_silence_is_named_so() -> None:
    silence = {"window": 4, "max_silent_windows": 2, "silent_share": 0.6}
    records = history_of(LAB, CASES["silent"], seed=0, **{**SIZE, "alarms": silence})
    assert len(records) - 1 == 4 + 4, "it stopped: the second window of silence was full"
    assert "silent_groups" in diagnose(History.of_records(records)).names


def test_alarms_stops_and_diagnosis_ask_the_same_objects() -> None:
    for function in (
        conditions.cancels,
        conditions.dominates,
        conditions.is_constant,
        conditions.have_zero_advantage,
        conditions.is_certain,
    ):
        name = function.__name__
        asked = [getattr(module, name) for module in (alarms, rules_entropy, rules_objective, rules_reward) if hasattr(module, name)]
        assert len(asked) >= 2
        assert all(one is function for one in asked), name
