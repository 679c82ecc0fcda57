"""Training in several processes is the same run as in one: same weights, same records, whatever share of the rows each has."""

from typing import Any

import pytest
import torch
import two_processes
from doubles import CPU
from two_processes import CASES, CASES_IN_FLOAT32, NUM_STEPS, launch

from grpo.learning.distributed import ALONE, Processes, joined_processes


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.prove)])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each of two, and of three, real processes found."""
    return launch(request.param, tmp_path_factory.mktemp("processes") / "found")


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return what one process found."""
    return two_processes.results(ALONE, NUM_STEPS)


def test_each_has_its_own_rows_and_all_have_the_same_sums_and_gathered_rows(found: list[dict[str, Any]]) -> None:
    size = len(found)
    primitives = [one["primitives"] for one in found]
    assert [one["is_first"] for one in primitives] == [True] + [False] * (size - 1)
    assert sorted(row for one in primitives for row in one["rows"]) == list(range(7))
    ranks = sum(range(size))
    for one in primitives:
        assert one["sum"] == [[[ranks, ranks]] * 2, [0, ranks + size, 2 * (ranks + size)]]
        assert one["gathered"] == [[rank, rank] for rank in range(size) for _ in range(rank)]
        assert one["gathered_one_number"] == [rank for rank in range(size) for _ in range(rank + 1)]
        assert one["any"] == [True, True, False]
        assert one["unlike"] == (
            f"node {size - 1} differs from node 0 (engine: Stockfish on node 0, Stockfish 17 there): give the queue machines of one kind"
        )


@pytest.mark.parametrize("case", CASES)
def test_several_processes_make_the_run_of_one(case: str, found: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    for one in found:
        together, single = one["results"][case], alone[case]
        for name, weight in single["weights"].items():
            assert (together["weights"][name] - weight).abs().max() < 1e-10, name
            assert torch.equal(together["weights"][name], found[0]["results"][case]["weights"][name]), "all hold the same policy"
        assert together["events"] == single["events"]
        for step in range(NUM_STEPS):
            assert together["metrics"][step] == pytest.approx(single["metrics"][step], rel=1e-6, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("case", CASES_IN_FLOAT32)
def test_in_float32_they_differ_by_rounding_alone(case: str, found: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    # Adam divides by the gradient's size: where it is next to nothing, rounding may turn a step of the learning rate, 2e-3, around.
    single = alone[case]
    of_network = ("grpo/loss", "grpo/entropy", "grpo/reward_mean", "grpo/kl_reference", "grpo/gradient_norm")
    for one in found:
        together = one["results"][case]
        differences = torch.cat([(together["weights"][name] - weight).abs().flatten() for name, weight in single["weights"].items()])
        assert differences.mean() < 1e-5
        assert (differences > 1e-4).double().mean() < 0.01
        assert together["events"] == single["events"]
        for step in range(NUM_STEPS):
            assert together["metrics"][step].keys() == single["metrics"][step].keys()
            for name in of_network if case == "a network" else single["metrics"][step]:
                assert together["metrics"][step][name] == pytest.approx(single["metrics"][step][name], rel=1e-3, abs=1e-5), name


def test_the_cases_are_what_their_names_say(alone: dict[str, Any]) -> None:
    """A case whose fault never happens would prove nothing."""
    metrics = {name: alone[name]["metrics"] for name in CASES}
    assert sum(step["grpo/skipped"] for step in metrics["a value that is no number"]) > 0
    assert sum(step["grpo/skipped"] for step in metrics["a probability that is no number"]) == 1
    assert any("trust_region" in names for names in alone["a trust region"]["events"])
    assert sum(step["grpo/states_dropped"] for step in metrics["a failing engine"]) > 0
    assert all(step["grpo/states"] > 8 for step in metrics["trajectory"])
    assert len({tuple(sorted(step.items())) for steps in metrics.values() for step in steps}) == NUM_STEPS * len(CASES)


def test_alone_there_is_nothing_to_sum_and_nobody_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined_processes(CPU) as processes:
        assert processes == ALONE == Processes(0, 1)
    assert not torch.distributed.is_initialized()
    tensor = torch.arange(3.0)
    ALONE.sum_([tensor])
    assert tensor.tolist() == [0, 1, 2]
    assert ALONE.gathered(tensor) is tensor
    assert ALONE.own_rows(4).tolist() == [0, 1, 2, 3]
    assert (ALONE.any(True, CPU), ALONE.any(False, CPU)) == (True, False)
    assert ALONE.is_first


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("num_rows", [0, 1, 6, 7])
def test_own_rows_are_a_partition(size: int, num_rows: int) -> None:
    parts = [Processes(rank, size).own_rows(num_rows).tolist() for rank in range(size)]
    assert sorted(row for part in parts for row in part) == list(range(num_rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all(part == sorted(part) for part in parts)
