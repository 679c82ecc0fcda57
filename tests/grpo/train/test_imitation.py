"""Imitation: it ends with the best weights of all looks, and reports what is true of them."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import chess
import numpy as np
import pytest
import torch
from doubles import CPU, TINY, fake_arrays, some_boards, written_probabilities

from grpo.base.errors import NonFiniteError
from grpo.dataset.table import LabelArrays
from grpo.metrics.records import Record
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy, new_policy, weights_hash
from grpo.settings.tree import PretrainConfig
from grpo.train import imitation
from grpo.train.imitation import imitate, validation_metrics

TRAIN = fake_arrays(some_boards(24, seed=1))
VALIDATION = fake_arrays(some_boards(16, seed=2))
LOSS = "imitation/validation_loss"


def config(**changes: Any) -> PretrainConfig:
    return PretrainConfig(**{"batch_size": 8, "learning_rate": 1e-2, "steps_per_validation": 3, "num_steps": 300, **changes})


def run(settings: PretrainConfig, *, seed: int = 0) -> tuple[NetworkPolicy, list[Record], list[str]]:
    """Return the trained policy, the looks, and the hash of the weights at each look."""
    policy = new_policy(TINY, seed=0, device=CPU)
    looks, hashes = [], []
    for look in imitate(policy, TRAIN, VALIDATION, settings, seed=seed):
        looks.append(look)
        hashes.append(weights_hash(policy))
    return policy, looks, hashes


def measures(policy: Any, boards: LabelArrays) -> dict[str, float]:
    return validation_metrics(policy, PositionBatch.from_arrays(boards), boards.played)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list from which the validation losses are taken, one a look."""
    script: list[float] = []
    monkeypatch.setattr(imitation, "validation_metrics", lambda *_: {LOSS: script.pop(0)})
    return script


Step = tuple[str, list[bytes]]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Return the list of the steps: the hash of the weights before it, and the boards that it is shown."""
    found: list[Step] = []
    original = imitation._loss

    def listening(policy: NetworkPolicy, positions: PositionBatch, played: torch.Tensor) -> torch.Tensor:
        found.append((weights_hash(policy), [row.tobytes() for row in positions.encodings.numpy()]))
        return original(policy, positions, played)

    monkeypatch.setattr(imitation, "_loss", listening)
    return found


# With what it ends.


@pytest.mark.parametrize(("num_steps", "looked_at"), [(12, [3, 6, 9, 12]), (13, [3, 6, 9, 12, 13]), (2, [2])])
def test_it_looks_at_the_end_too_and_keeps_the_best_weights_while_the_rate_falls(
    num_steps: int, looked_at: list[int], losses: list[float]
) -> None:
    losses += [3.0, 2.0, 2.5, 2.0, 2.1]  # A tie is no gain.
    policy, looks, hashes = run(config(num_steps=num_steps))
    assert [look.step for look in looks] == looked_at
    rates = [look.metrics["imitation/learning_rate"] for look in looks]
    assert rates == pytest.approx([1e-2 * (num_steps - step + 1) / num_steps for step in looked_at])
    assert weights_hash(policy) == hashes[:2][-1], "of the second look, where there is one"
    assert len({*hashes}) == len(hashes)


def test_a_real_run_learns_the_moves_overfits_and_ends_with_the_weights_it_reports() -> None:
    policy, looks, hashes = run(config())
    measured = [look.metrics[LOSS] for look in looks]
    best = measured.index(min(measured))
    assert measured[best] < measured[-1]
    assert weights_hash(policy) == hashes[best]
    assert measures(policy, VALIDATION).items() <= looks[best].metrics.items()
    assert measured[best] < measures(new_policy(TINY, seed=0, device=CPU), VALIDATION)[LOSS]


def test_each_epoch_shows_every_board_once_wherever_the_looks_fall(taken: list[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "reflected", lambda positions, which: positions)
    run(config(num_steps=9, steps_per_validation=5))
    shown = [row for _, rows in taken for row in rows]
    epochs = [shown[start : start + 24] for start in (0, 24, 48)]
    boards = Counter(row.tobytes() for row in TRAIN.encodings)
    assert [Counter(epoch) == boards for epoch in epochs] == [True] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0], "in an order of its own"


EXPECTED = {
    "train_loss": [3.549539515962, 3.325546632488, 3.322875374495],
    "validation_loss": [3.424228713567, 3.430393494952, 3.431727417215],
    "entropy": [3.405074846999, 3.404239040133, 3.403860798649],
}
"""Metrics of a tiny imitation at its measurements. A commit that changes a number on purpose writes the new number here."""


def test_a_tiny_imitation_is_the_same_on_every_machine_to_the_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "_VALIDATION_BATCH", 7)
    policy = new_policy(TINY, seed=0, device=CPU)
    policy.network.double()  # Rounding then differs by less than is compared.
    # Moves of any column: those of the other tests are each board's first.
    train, validation = (replace(each, played=np.arange(len(each)) * 7 % each.is_legal.sum(1)) for each in (TRAIN, VALIDATION))
    looks = list(imitate(policy, train, validation, config(num_steps=7), seed=5))
    found = {name: [look.metrics[f"imitation/{name}"] for look in looks] for name in EXPECTED}
    assert found == {name: pytest.approx(values, rel=1e-7) for name, values in EXPECTED.items()}


def test_a_look_that_is_not_finite_ends_it_with_an_error(losses: list[float]) -> None:
    losses += [3.0, math.inf]
    with pytest.raises(NonFiniteError, match=r"step 6: .*pretrain\.learning_rate"):
        run(config())


# What is measured.

# A king in the corner (three moves) and one in the middle (eight).
CORNER = chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1")
OPEN_KING = chess.Board("7k/8/8/8/3K4/8/8/8 w - - 0 1")
IN_32NDS = {"d4c3": 8, "d4c4": 8, "d4c5": 4, "d4d3": 4, "d4d5": 2, "d4e3": 2.5, "d4e4": 3, "d4e5": 0.5}
PROBABILITIES = {
    CORNER.board_fen(): {"a1a2": 0.5, "a1b1": 0.25, "a1b2": 0.25},
    OPEN_KING.board_fen(): {move: number / 32 for move, number in IN_32NDS.items()},
}


def test_the_measures_worked_by_hand() -> None:
    policy = written_probabilities(PROBABILITIES)
    # The move played: the likeliest; the second of three; one of two likeliest; the fifth, sixth and eighth of eight.
    played = {"a1a2": CORNER, "a1b2": CORNER, "d4c3": OPEN_KING, "d4e4": OPEN_KING, "d4e3": OPEN_KING, "d4e5": OPEN_KING}
    metrics = measures(policy, fake_arrays([*played.values()], played=[*played]))
    loss = (math.log(2) + math.log(4) + math.log(4) - math.log(3 / 32) - math.log(2.5 / 32) + math.log(64)) / 6
    corner = 1.5 * math.log(2)
    middle = -sum(p * math.log(p) for p in PROBABILITIES[OPEN_KING.board_fen()].values())
    assert metrics == pytest.approx(
        {LOSS: loss, "imitation/top1": 1 / 6, "imitation/top5": 4 / 6, "imitation/entropy": (2 * corner + 4 * middle) / 6},
        abs=1e-5,
    )
