"""Thousands of whole selections with made-up players, run by `make prove`: noise is not promoted, and strength is."""

from collections.abc import Sequence
from itertools import islice

import chess
import numpy as np
import pytest
from made_selections import NO_GAIN, Protocol, confirmed, screened, selected, share_promoted

from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.match import matches
from grpo.match.matches import adjudicate, play_match
from grpo.statistics.halving import sequential_halving
from grpo.statistics.verdict import Decision, decide
from grpo.train.self_play import random_openings

pytestmark = pytest.mark.prove

NUM_SELECTIONS = 1_000
EQUAL = dict.fromkeys(range(50, 1_050, 50), 0.0)
LAST = 1_000
PROTOCOLS = {
    "half draws": Protocol(),
    "few draws": Protocol(draw_rate=0.1),
    "many draws": Protocol(draw_rate=0.8),
}

protocols = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS.keys())


@protocols
def test_of_1_000_selections_among_20_equal_checkpoints_at_most_5_percent_promote(protocol: Protocol) -> None:
    rng = np.random.default_rng(1)
    decisions = [selected(rng, EQUAL, protocol) for _ in range(NUM_SELECTIONS)]
    print(f"promoted {share_promoted(decisions):.1%}")
    assert share_promoted(decisions) <= 0.05


@protocols
def test_a_last_checkpoint_that_is_50_elo_stronger_is_promoted_and_a_wrong_one_in_at_most_5_percent(protocol: Protocol) -> None:
    rng = np.random.default_rng(2)
    decisions = [selected(rng, EQUAL | {LAST: 50.0}, protocol) for _ in range(NUM_SELECTIONS)]
    found = [decision for decision in decisions if decision.candidate_step == LAST]
    right = sum(decision.promoted for decision in found) / NUM_SELECTIONS
    wrong = sum(decision.promoted for decision in decisions if decision.candidate_step != LAST) / NUM_SELECTIONS
    print(f"power: the last promoted {right:.1%} (chosen {len(found) / NUM_SELECTIONS:.1%}, then confirmed {share_promoted(found):.1%});")
    print(f"a wrong one {wrong:.1%}")
    assert wrong <= 0.05
    assert right >= 0.85
    assert share_promoted(found) >= 0.9, "once chosen, 50 Elo are nearly always confirmed"


@protocols
def test_a_last_checkpoint_that_collapsed_gives_way_to_an_earlier_one(protocol: Protocol) -> None:
    rng = np.random.default_rng(4)
    decisions = [selected(rng, dict.fromkeys(EQUAL, 60.0) | {LAST: -60.0}, protocol) for _ in range(NUM_SELECTIONS)]
    kept = sum(decision.candidate_step == LAST for decision in decisions) / NUM_SELECTIONS
    print(f"the collapsed one chosen {kept:.1%}, an earlier one promoted {share_promoted(decisions):.1%}")
    assert kept <= 0.05
    assert share_promoted(decisions) >= 0.95


@protocols
def test_a_history_of_noise_claims_no_progress_whatever_the_previous_champion(protocol: Protocol) -> None:
    # Five runs, one after the other, each from where the last ended; nothing ever gets stronger. All claims of a run count.
    rng = np.random.default_rng(3)
    runs, claimed = 0, 0
    for _ in range(NUM_SELECTIONS // 5):
        has_champion = False
        for _ in range(5):
            winner = screened(rng, EQUAL, protocol).winner
            previous = confirmed(rng, 0.0, protocol) if has_champion else None
            against_initial = confirmed(rng, 0.0, protocol)
            decision = decide(winner, against_initial=against_initial, against_previous=previous, beside={}, ladder_gain=NO_GAIN, phases=())
            claimed += any(claim.is_shown for claim in decision.claims)
            runs += 1
            has_champion = has_champion or decision.promoted or runs % 5 == 2
    print(f"{claimed / runs:.1%} of {runs} runs claim anything")
    assert claimed / runs <= 0.05


# Real games. Equal policies would draw every pair (`test_a_candidate_that_is_no_better_leaves_the_initial_policy_champion`), so the
# candidates differ from their start by noise.


@pytest.fixture
def _shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let adjudication search one ply, which takes a tenth of the time."""
    monkeypatch.setattr(matches, "DEPTH", 1)


class Taker:
    """Takes the most valuable piece if `takes`; a hash of `noise` and the position decides the rest. No noise is stronger than another."""

    name = "taker"

    def __init__(self, noise: int, *, takes: bool = True) -> None:
        self._noise, self._takes = noise, takes

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[chess.Move]:
        return [self._move(board) for board in boards]

    def _move(self, board: chess.Board) -> chess.Move:
        moves = list(board.legal_moves)
        gains = [((board.piece_type_at(move.to_square) or 0) + (move.promotion or 0)) * self._takes for move in moves]
        pieces = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings, board.occupied_co[chess.WHITE])
        equal = [move for move, gain in zip(moves, gains, strict=True) if gain == max(gains)]
        # Hashes of numbers are the same in every process.
        return max(equal, key=lambda move: hash((self._noise, board.turn, *pieces, move.from_square, move.to_square, move.promotion or 0)))


def played_selection(seed: int, start: Taker, stockfish: str) -> tuple[Decision, list[float]]:
    """Return the decision on the best of four candidates that take, and its adjudicated pair scores in the confirmation games."""
    openings = iter(dict.fromkeys(random_openings(300, max_plies=8, rng=np.random.default_rng(seed))))
    of_round = {number: list(islice(openings, 10)) for number in (0, 1)}
    with EnginePool(stockfish, num_processes=1, options={"Hash": PLAYING_HASH_MIB}) as pool:

        def play(step: int, against: Sequence[str]) -> list[float]:
            # Takers rarely mate, so adjudication decides.
            return adjudicate(play_match(Taker(100 * seed + step), start, against, max_plies=60), pool).pair_scores(adjudicated=True)

        winner = sequential_halving([1, 2, 3, 4], lambda steps, number: {step: play(step, of_round[number]) for step in steps}).winner
        scores = play(winner, list(islice(openings, 50)))
    return decide(winner, against_initial=scores, against_previous=None, beside={}, ladder_gain=NO_GAIN, phases=()), scores


@pytest.mark.usefixtures("_shallow")
def test_of_20_selections_by_real_games_among_players_that_differ_by_noise_at_most_2_promote(stockfish: str) -> None:
    played = [played_selection(seed, Taker(100 * seed), stockfish) for seed in range(20)]
    scores = np.concatenate([scores for _, scores in played])
    print(f"promoted {share_promoted([decision for decision, _ in played]):.0%} of 20; {np.unique(scores, return_counts=True)}")
    # Each is promoted with probability 2.5 % at most; more than 2 of 20 with 1.3 %.
    assert share_promoted([decision for decision, _ in played]) <= 0.1
    assert abs(scores.mean() - 0.5) < 4 * scores.std() / len(scores) ** 0.5, "neither side of a match is favored"
    assert scores.std() > 0.2, "the games are decisive"


@pytest.mark.usefixtures("_shallow")
def test_a_selection_by_real_games_promotes_strength(stockfish: str) -> None:
    assert played_selection(0, Taker(0, takes=False), stockfish)[0].promoted
