"""The policy's own games: what is taken from them, when they are played again, and that only seed, weights and step decide."""

from collections.abc import Sequence
from typing import Any

import chess
import numpy as np
import pytest
import torch
from doubles import CPU, TINY, MadeUpValues, WrittenPolicy, check_states, fake_arrays, lively_policy, name_of, names_of, some_boards

import grpo.train.self_play as self_playing
from grpo.board.encoding import position_key
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.metrics.table import METRICS
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import new_policy
from grpo.settings.grpo import GrpoConfig
from grpo.train.network_problem import NetworkProblem
from grpo.train.self_play import SelfPlay, SelfPlayError, taken_plies
from grpo.train.states import DatasetStates, States
from grpo.train.trainer import Trainer

SHUFFLE = ["g1f3", "g8f6", "f3g1", "f6g8"]


def no_values(boards: Sequence[chess.Board]) -> list[ValueTable | EngineError]:
    """Must not be asked."""
    raise AssertionError(f"asked for the values of {len(boards)} boards that were valued before")


def always(moves: Sequence[str]) -> WrittenPolicy:
    """Return the policy that plays this line from the start, over and over where it leads back there; elsewhere all moves are equal."""
    board, line = chess.Board(), {}
    for uci in moves:
        line[board.fen().split(" ", 2)[0], board.turn] = uci
        board.push_uci(uci)
    return WrittenPolicy(lambda board, move: 100.0 * (line.get((board.board_fen(), board.turn)) == move.uci()))


@pytest.fixture(autouse=True)
def short_games(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_playing, "MAX_PLIES", 12)
    monkeypatch.setattr(self_playing, "_MIN_OPENINGS_PER_BATCH", 8)


@pytest.fixture
def from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_playing, "OPENING_PLIES", 0)


def own_games(
    values: Any = None, *, size: int = 8, first_step: int = 0, exclude: frozenset[str] = frozenset(), **settings: Any
) -> SelfPlay:
    numbers: dict[str, Any] = {"states_per_step": 4, "self_play_fraction": 0.9, "self_play_states": 40, "self_play_steps": 12}
    config = GrpoConfig(**{**numbers, **settings})
    return SelfPlay(
        values=values or MadeUpValues(),
        config=config,
        size=size,
        first_step=first_step,
        seed=3,
        exclude=exclude,
        num_processes=2,
        prepared=PositionBatch.with_features,
        say=lambda _: None,
    )


def raw(states: States) -> list[bytes]:
    """Return all that the states are made of, as bytes."""
    positions = states.positions
    tensors = [positions.encodings, positions.action_ids, positions.is_legal, states.values, states.phases]
    return [f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes() for tensor in tensors]


POLICY, OTHER_POLICY = (new_policy(TINY, seed=seed, device=CPU) for seed in (0, 1))


# What is taken from the games.


def test_a_round_gives_distinct_positions_with_a_choice_each_with_its_own_values_and_phase() -> None:
    values = MadeUpValues()
    states = own_games(values, size=40).states(0, POLICY)
    assert len(states) == len(set(names_of(states))) == len(values.asked) == 40, "every position is valued once, and no other"
    assert {name_of(board) for board in values.asked} == set(names_of(states))
    assert all(board.legal_moves.count() > 1 for board in values.asked)
    check_states(states)


@pytest.mark.usefixtures("from_the_start")
def test_a_game_that_repeats_itself_ends_and_gives_each_position_once() -> None:
    own = own_games(size=4, self_play_states=4)
    states = own.states(0, always(SHUFFLE))
    board, line = chess.Board(), set()
    for uci in SHUFFLE:
        board.push_uci(uci)
        line.add(name_of(board))
    assert set(names_of(states)) == line
    assert states.positions.repeats.any(), "a state knows its game"
    metrics = own.round_metrics()
    assert (metrics["self_play/repeated"], metrics["self_play/decisive"]) == (1, 0)
    with pytest.raises(SelfPlayError, match=r"round 1: \d+ games gave only 4 distinct positions"):
        own_games(size=4, self_play_states=5).states(0, always(SHUFFLE))


@pytest.mark.usefixtures("from_the_start")
def test_an_excluded_position_is_no_state_although_the_games_reach_it() -> None:
    board, line = chess.Board(), list[chess.Board]()
    for uci in SHUFFLE:
        board.push_uci(uci)
        line.append(board.copy())
    own = own_games(size=3, self_play_fraction=0.7, self_play_states=3, exclude=frozenset({position_key(line[1].mirror())}))
    states = own.states(0, always(SHUFFLE))
    assert set(names_of(states)) == {name_of(board) for board in line} - {name_of(line[1])}


# Values that fail.


def is_unlucky(board: chess.Board) -> bool:
    """Return whether the engine fails on this board: on every fourth or so."""
    return sum(map(ord, name_of(board))) % 4 == 0


def test_positions_that_the_engine_fails_on_are_dropped_and_counted_and_each_step_has_others_of_the_rest() -> None:
    values = MadeUpValues(fails_on=is_unlucky)
    own = own_games(values)
    taken = names_of(own.states(0, POLICY))
    num_failed = sum(map(is_unlucky, values.asked))
    assert own.round_metrics()["self_play/dropped"] == num_failed > 0
    taken += [name for step in range(1, (40 - num_failed) // 8) for name in names_of(own.states(step, POLICY))]
    assert len(values.asked) == 40
    assert len(set(taken)) == len(taken)
    assert set(taken) <= {name_of(board) for board in values.asked if not is_unlucky(board)}


def test_a_round_that_leaves_fewer_states_than_a_step_takes_is_an_error_with_both_numbers() -> None:
    own = own_games(MadeUpValues(fails_on=lambda board: sum(map(ord, name_of(board))) % 10 > 0))
    with pytest.raises(SelfPlayError, match=r"the engine failed on 3\d of 40 positions; fewer remain than the 8 states"):
        own.states(0, POLICY)


@pytest.mark.usefixtures("from_the_start")
def test_a_game_that_ends_in_mate_is_counted_as_decided() -> None:
    own = own_games(size=3, self_play_fraction=0.7, self_play_states=3)
    own.states(0, always(["f2f3", "e7e5", "g2g4", "d8h4"]))
    assert (own.round_metrics()["self_play/repeated"], own.round_metrics()["self_play/decisive"]) == (0, 1)


# Rounds: only seed, weights and step decide.


def test_a_round_is_played_and_measured_when_it_begins_by_the_policy_as_it_then_is() -> None:
    own, with_another = (own_games(size=40, self_play_steps=2, first_step=5) for _ in range(2))
    shown, measured = {}, {}
    for step in (5, 6, 7):
        shown[step], measured[step] = own.states(step, POLICY), own.round_metrics()
    assert [bool(metrics) for metrics in measured.values()] == [True, False, True]
    assert measured[5].keys() == {name for name in METRICS if name.startswith("self_play/")}

    assert raw(with_another.states(5, POLICY)) == raw(shown[5])
    assert raw(with_another.states(6, OTHER_POLICY)) == raw(shown[6]), "within a round nobody plays"
    assert set(names_of(with_another.states(7, OTHER_POLICY))) != set(names_of(shown[7]))

    assert set(names_of(shown[5])) == set(names_of(shown[6]))
    assert set(names_of(shown[5])) != set(names_of(shown[7])), "the same policy plays other games in another round"


def test_each_purpose_and_each_round_has_a_stream_of_its_own_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[tuple[Any, ...]] = []
    for kind in ("numpy_stream", "torch_stream"):
        real = getattr(self_playing, kind)
        monkeypatch.setattr(self_playing, kind, lambda *name, real=real: names.append(name) or real(*name))
    own, rounds = own_games(self_play_states=4), list[list[str]]()
    for number in (0, 1):
        rounds.append([game.opening for game in own._play_games(number, POLICY)[1]])
    assert len(names) == len(set(names)) == 2 * 3
    assert {name[0] for name in names} == {own.seed}
    assert rounds[0] != rounds[1]


def test_no_two_games_of_a_round_share_a_number_so_each_draws_moves_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, play = list[int](), self_playing.play_match
    monkeypatch.setattr(self_playing, "play_match", lambda *given, **how: numbers.extend(given[2]) or play(*given, **how))
    own_games(self_play_states=100)._play_games(0, POLICY)
    assert numbers == [*range(len(numbers))]
    assert len(numbers) > 8, "more than one batch"


def test_restored_own_games_go_on_as_if_never_stopped() -> None:
    straight = own_games(self_play_steps=4)
    straight.states(0, POLICY)
    saved = straight.state()

    resumed = own_games(no_values, self_play_steps=4)
    resumed.restore(saved)
    for step in (1, 2, 3):
        assert raw(resumed.states(step, OTHER_POLICY)) == raw(straight.states(step, POLICY))

    resumed = own_games(self_play_steps=4)
    resumed.restore(saved)
    for step in (4, 5):
        assert raw(resumed.states(step, POLICY)) == raw(straight.states(step, POLICY))


MEASURED = ("reward_mean", "entropy", "agreement", "states_dropped", "loss", "kl_old", "gradient_norm", "logit_share/policy")
TRAINED: list[tuple[dict[str, Any], dict[str, list[float]]]] = [
    (
        {"group_size": 4},
        {
            "reward_mean": [0.452983493, 0.520990178, 0.5313370917],
            "entropy": [1.621978261, 1.882056022, 1.196698125],
            "agreement": [0.53125, 0.5625, 0.71875],
            "states_dropped": [0.0, 0.0, 0.0],
            "loss": [0.0598653124, 0.1080296236, 0.1109236561],
            "kl_old": [0.05985748727, 0.06230854208, 0.007039170638],
            "gradient_norm": [0.7153566076, 1.073756949, 1.242405521],
            "logit_share/policy": [0.6922828358, 0.6684754044, 0.7716497913],
            "weights": [8807.260127, 8807.036198],
        },
    ),
    (
        {"group_size": 3, "num_own_moves": 2},
        {
            "reward_mean": [-0.5344389399, -0.4620084268, -0.4583144023],
            "entropy": [1.561288332, 1.712033443, 1.735426779],
            "agreement": [0.6666666667, 0.625, 0.5833333333],
            "states_dropped": [3.0, 1.0, 1.0],
            "loss": [0.04891512616, 0.09879400581, 0.05327282649],
            "kl_old": [0.09050698407, 0.0319020731, 0.02009896687],
            "gradient_norm": [0.5492957728, 0.6942950644, 0.6722410639],
            "logit_share/policy": [0.7674407282, 0.7385466731, 0.7933543569],
            "weights": [8806.472161, 8806.213259],
        },
    ),
]
"""Kind of training -> what three steps of it measure. A number that moves on purpose is written anew by the commit that moves it."""


@pytest.mark.parametrize(("changes", "expected"), TRAINED, ids=["groups", "trajectories"])
def test_a_tiny_training_is_the_same_on_every_machine_to_the_last_digits(
    changes: dict[str, Any], expected: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In float64, in which no processor's rounding changes a move that is drawn.
    monkeypatch.setattr(self_playing, "_MIN_OPENINGS_PER_BATCH", 2)
    own = own_games(size=4, first_step=2, self_play_states=8, self_play_steps=2)
    config = GrpoConfig(
        states_per_step=8,
        num_minibatches=2,
        num_steps=8,
        learning_rate=5e-3,
        learning_rate_decay="cosine",
        entropy_schedule="target",
        entropy_coefficient=0.02,
        kl_coefficient=0.05,
        temperature=1.3,
        weight_averaging=0.3,
        **changes,
    )
    policy, reference = lively_policy(), lively_policy(seed=9)
    for one in (policy, reference):
        one.network.double()
    dataset = DatasetStates(fake_arrays(some_boards(16)), states_per_step=4, seed=3)
    problem = NetworkProblem(reference, dataset, config, seed=3, self_play=own, values=MadeUpValues(fails_on=is_unlucky))
    trainer = Trainer(problem, policy, config, seed=3, first_step=2)
    records = [trainer.step() for _ in range(3)]
    found = {name: [record.metrics[f"grpo/{name}"] for record in records] for name in MEASURED}
    found["weights"] = [
        sum(float(parameter.detach().abs().sum()) for parameter in one.network.parameters())
        for one in (trainer.policy, trainer.evaluation_policy)
    ]
    assert found == {name: pytest.approx(values, rel=1e-7) for name, values in expected.items()}


@pytest.mark.parametrize(("num_plies", "stride"), [(2, 3), (97, 3), (98, 5), (160, 5), (161, 5), (162, 7)])
def test_positions_are_taken_at_an_odd_stride_from_every_offset_but_the_first(num_plies: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    taken = {taken_plies(num_plies, rng) for _ in range(200)}
    assert taken == {range(start, num_plies, stride) for start in range(1, stride + 1)}


def test_a_step_has_the_datasets_states_first_and_own_ones_after() -> None:
    dataset = DatasetStates(fake_arrays(some_boards(20)), states_per_step=5, seed=3)
    problem, own = NetworkProblem(POLICY, dataset, GrpoConfig(), seed=3, self_play=own_games()), own_games()
    for step in (0, 6):
        states = problem.states(POLICY, step)
        assert len(states) == 13
        assert raw(states.select_rows(torch.arange(5))) == raw(dataset.states(step))
        assert raw(states.select_rows(torch.arange(5, 13))) == raw(own.states(step, POLICY))
