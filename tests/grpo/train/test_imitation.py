"""Imitation: it stops when the validation loss stops falling, ends with the best weights, and reports what is true of them."""

import math
from collections import Counter
from typing import Any, cast

import chess
import pytest
import torch
from doubles import CPU, TINY, WrittenPolicy, fake_arrays, some_boards, written_probabilities

from grpo.base.errors import NonFiniteError
from grpo.diagnosis.records import Record
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy, new_policy, weights_hash
from grpo.settings.tree import PretrainConfig
from grpo.train import imitation
from grpo.train.imitation import imitate, validation_metrics

TRAIN = fake_arrays(some_boards(24, seed=1))
VALIDATION = fake_arrays(some_boards(16, seed=2))
LOSS = "imitation/validation_loss"


def config(**changes: Any) -> PretrainConfig:
    """Return settings for a run of moments."""
    numbers: dict[str, Any] = {
        "batch_size": 8,
        "learning_rate": 1e-2,
        "steps_per_validation": 3,
        "max_steps": 300,
        **changes,
    }
    return PretrainConfig(**numbers)


def run(settings: PretrainConfig, *, seed: int = 0) -> tuple[NetworkPolicy, list[Record], list[str]]:
    """Return the trained policy, the looks, and the hash of the weights at each look."""
    policy = new_policy(TINY, seed=0, device=CPU)
    looks, hashes = [], []
    for look in imitate(policy, TRAIN, VALIDATION, settings, seed=seed):
        looks.append(look)
        hashes.append(weights_hash(policy))
    return policy, looks, hashes


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it wait for two looks without gain, and cut once."""
    monkeypatch.setattr(imitation, "_PATIENCE", 2)
    monkeypatch.setattr(imitation, "_NUM_CUTS", 1)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list from which the validation losses are taken, one a look."""
    script: list[float] = []
    monkeypatch.setattr(imitation, "validation_metrics", lambda policy, boards: {LOSS: script.pop(0)})
    return script


# When it stops, and with what.


def test_it_cuts_the_learning_rate_when_the_loss_stops_falling_and_ends_when_that_helps_no_more(losses: list[float]) -> None:
    losses += [3.0, 2.0, 2.5, 2.1, 1.9, 1.95, 1.9]  # A tie is no gain.
    policy, looks, hashes = run(config())
    assert losses == [], "not a look more"
    assert [look.step for look in looks] == [3, 6, 9, 12, 15, 18, 21]
    assert [look.metrics["imitation/learning_rate"] for look in looks] == pytest.approx([1e-2] * 4 + [2e-3] * 3)
    assert weights_hash(policy) == hashes[4] != hashes[6]


def test_after_a_cut_it_goes_on_from_the_best_weights(losses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    before_steps: list[str] = []
    original = imitation._loss

    def listening(policy: NetworkPolicy, positions: PositionBatch, played: torch.Tensor) -> torch.Tensor:
        before_steps.append(weights_hash(policy))
        return original(policy, positions, played)

    monkeypatch.setattr(imitation, "_loss", listening)
    losses += [2.0, 2.5, 2.1, 2.6, 2.6]
    _, _, hashes = run(config())
    assert before_steps[9] == hashes[0], "step 10 is the first after the cut; look 1 was the best"
    assert before_steps[3] == hashes[0]
    assert before_steps[6] == hashes[1]


@pytest.mark.parametrize(("max_steps", "last_looks"), [(12, [9, 12]), (13, [12, 13]), (2, [2])])
def test_a_loss_that_falls_for_ever_is_cut_off_at_the_bound_and_not_called_converged(
    max_steps: int, last_looks: list[int], losses: list[float]
) -> None:
    losses += [10.0 - step for step in range(10)]
    policy, looks, hashes = run(config(max_steps=max_steps))
    assert [look.step for look in looks][-2:] == last_looks, "the last is at the bound, by which the report knows it"
    assert weights_hash(policy) == hashes[-1]


def test_a_real_run_learns_the_moves_overfits_and_ends_with_the_weights_it_reports() -> None:
    policy, looks, hashes = run(config())
    measured = [look.metrics[LOSS] for look in looks]
    best = measured.index(min(measured))
    assert looks[-1].step < 300, "it has converged"
    assert measured[best] < measured[-1]
    assert weights_hash(policy) == hashes[best]
    assert validation_metrics(policy, VALIDATION).items() <= looks[best].metrics.items()
    assert measured[best] < validation_metrics(new_policy(TINY, seed=0, device=CPU), VALIDATION)[LOSS]


@pytest.mark.parametrize("steps_per_validation", [1, 2, 3, 5])
def test_each_epoch_shows_every_board_once_wherever_the_looks_fall(steps_per_validation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[bytes] = []
    original = imitation._loss

    def listening(policy: NetworkPolicy, positions: PositionBatch, played: torch.Tensor) -> torch.Tensor:
        shown.extend(row.tobytes() for row in positions.encodings.numpy())
        return original(policy, positions, played)

    monkeypatch.setattr(imitation, "_loss", listening)
    monkeypatch.setattr(imitation, "_PATIENCE", 50)
    monkeypatch.setattr(imitation, "reflected", lambda positions, which: positions)
    run(config(max_steps=9, steps_per_validation=steps_per_validation))
    assert len(shown) == 72
    epochs = [shown[start : start + 24] for start in (0, 24, 48)]
    boards = Counter(row.tobytes() for row in TRAIN.encodings)
    assert [Counter(epoch) == boards for epoch in epochs] == [True] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0], "in an order of its own"


def test_equal_seeds_give_equal_runs_and_another_seed_another() -> None:
    one, same, other = (run(config(max_steps=12), seed=seed) for seed in (0, 0, 1))
    assert one[1:] == same[1:]
    assert weights_hash(one[0]) == weights_hash(same[0])
    assert one[2] != other[2]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_look_that_is_not_finite_ends_it_with_an_error(number: float, losses: list[float]) -> None:
    losses += [3.0, number]
    with pytest.raises(NonFiniteError, match=r"step 6: the validation loss is (nan|inf); lower pretrain\.learning_rate"):
        run(config())


# What is measured.

# A king in the corner (three moves) and one in the middle (eight).
CORNER = chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1")
OPEN_KING = chess.Board("7k/8/8/8/3K4/8/8/8 w - - 0 1")
PROBABILITIES = {
    CORNER.board_fen(): {"a1a2": 0.5, "a1b1": 0.25, "a1b2": 0.25},
    OPEN_KING.board_fen(): {
        "d4c3": 0.25,
        "d4c4": 0.25,
        "d4c5": 0.125,
        "d4d3": 0.125,
        "d4d5": 0.0625,
        "d4e3": 0.0625,
        "d4e4": 0.0625 + 0.03125,
        "d4e5": 0.03125,
    },
}


def metrics_of(policy: WrittenPolicy, boards: list[chess.Board], played: list[str]) -> dict[str, float]:
    """Return what is measured of a policy that is no network."""
    return validation_metrics(cast("NetworkPolicy", policy), fake_arrays(boards, played=played))


def test_the_measures_worked_by_hand() -> None:
    policy = written_probabilities(PROBABILITIES)
    # The move played: the likeliest; the second of three; and the last of eight.
    metrics = metrics_of(policy, [CORNER, CORNER, OPEN_KING], ["a1a2", "a1b2", "d4e5"])
    loss = (math.log(2) + math.log(4) + math.log(32)) / 3
    corner = 1.5 * math.log(2)
    middle = -sum(p * math.log(p) for p in PROBABILITIES[OPEN_KING.board_fen()].values())
    assert metrics == pytest.approx(
        {
            LOSS: loss,
            "imitation/top1": 1 / 3,
            "imitation/top5": 2 / 3,
            "imitation/entropy": (2 * corner + middle) / 3,
        },
        abs=1e-5,
    )


@pytest.mark.parametrize(("played", "top1", "top5"), [("d4e3", 1, 1), ("d4e4", 0, 1), ("d4d3", 0, 1), ("d4c5", 0, 0), ("d4c3", 0, 0)])
def test_the_fifth_likeliest_move_is_within_top_5_and_the_sixth_is_not(played: str, top1: float, top5: float) -> None:
    order = ["d4e3", "d4e4", "d4e5", "d4d5", "d4d3", "d4c5", "d4c4", "d4c3"]
    policy = WrittenPolicy(lambda board, move: -0.5 * order.index(move.uci()))
    metrics = metrics_of(policy, [OPEN_KING], [played])
    assert (metrics["imitation/top1"], metrics["imitation/top5"]) == (top1, top5)
