"""Proofs of the diagnosis on histories that our own trainer makes from real boards, with real values and pretrained policies: minutes.

The histories are made once a session by `made_histories`: 20 healthy ones over settings and seeds, and each failure in three seeds.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from made_histories import FAILED, HEALTHY, SEEDS, Case, history_of, lab_in

from grpo.diagnosis.diagnose import Watch, diagnose
from grpo.diagnosis.history import History
from grpo.metrics.table import Record

pytestmark = pytest.mark.prove

NUM_HEALTHY = 20

Runs = Mapping[tuple[str, int], list[Record]]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All histories, by name and seed."""
    if shutil.which("stockfish") is None and not Path("/usr/games/stockfish").exists():
        pytest.skip("no Stockfish: boards cannot be valued; install it, or put it on PATH")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lab = lab_in(tmp_path_factory.mktemp("lab"))
    yield {
        **{(name, seed): history_of(lab, HEALTHY[name], seed=seed) for name, seed in _healthy()},
        **{(name, seed): history_of(lab, case, seed=seed) for name, case in FAILED.items() for seed in SEEDS},
    }
    torch.set_num_threads(num_threads)


def _healthy() -> list[tuple[str, int]]:
    return [(name, seed) for seed in SEEDS for name in HEALTHY][:NUM_HEALTHY]


def _names(records: list[Record]) -> tuple[str, ...]:
    return diagnose(History.of_records(records)).names


def _case(name: str) -> Case:
    return HEALTHY[name] if name in HEALTHY else FAILED[name]


def test_20_healthy_runs_over_settings_and_seeds_raise_no_alarm(runs: Runs) -> None:
    assert len(_healthy()) == NUM_HEALTHY
    assert {key: _names(runs[key]) for key in _healthy() if "healthy" not in _names(runs[key])} == {}


def test_watched_live_healthy_runs_raise_no_alarm_and_failures_are_named(runs: Runs) -> None:
    wrong = {}
    for (name, seed), records in runs.items():
        watch = Watch()
        found = [finding.name for record in records for finding in watch.observe(record)]
        if found if name in HEALTHY else _case(name).shows not in found:
            wrong[name, seed] = found
    assert wrong == {}
