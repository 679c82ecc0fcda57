"""The diagnosis of our own runs, in its quick form: healthy and failed ones on made-up boards; tests/proofs has the large form."""

from functools import cache

import pytest
import torch
from doubles import fake_arrays, lively_policy, some_boards
from made_histories import FAILED, HEALTHY, Lab, history_of, noisy

from grpo.diagnosis import History, Watch, diagnose
from grpo.metrics import Record

torch.set_num_threads(1)

BOARDS = some_boards(64)
LAB = Lab(train=fake_arrays(BOARDS[:48]), heldout=fake_arrays(BOARDS[48:]), policy=lambda _: lively_policy())
SIZE = {"states_per_step": 32, "num_steps": 30, "steps_per_checkpoint": 10}
NAMES = ("smoke-no-games", "clean-like", "temperature-two-updates", "swapped-advantages", "k1-and-bonus", "failure-as-zero")
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


@pytest.mark.parametrize("name", NAMES)
def test_noise_on_whatever_column_changes_no_verdict(name: str) -> None:
    columns = {column for record in made(name) for column in record.metrics}
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
