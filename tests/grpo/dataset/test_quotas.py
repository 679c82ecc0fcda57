"""Quotas: filled exactly, of useful positions only, and with no game or position on two sides."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.board.encoding import position_key
from grpo.board.phases import PHASES, Phase
from grpo.dataset.games import Game, Reason, Rejection
from grpo.dataset.quotas import (
    Quota,
    QuotaCell,
    SourceReport,
    cut_to_quota,
    refusal,
    shortage_text,
    split_fractions,
    split_of_game,
)
from grpo.dataset.table import Position, Split
from grpo.settings.tree import BoardsConfig

MOVES = "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 d2d3 d7d6"
ROOK_ENDING = "8/5k2/8/8/3R4/8/5K2/8 w - - 0 1"


def in_each_cell(count: int) -> dict[QuotaCell, int]:
    return {(split, phase): count for split in Split for phase in PHASES}


def new_quota(count: int = 50, *, seed: int = 0, excluded: Any = frozenset(), **config: Any) -> tuple[Quota, SourceReport]:
    """Return a quota of so many boards in every cell, and the report that it counts in."""
    small = {"num_train": 60, "num_validation": 15, "num_heldout": 15}
    quota = Quota(in_each_cell(count), BoardsConfig(**{**small, **config}), seed=seed, excluded=excluded)
    return quota, quota.report


def game_of(moves: str, *, game_id: str = "g", is_label: Sequence[bool] | None = None, fen: str = chess.STARTING_FEN, **facts: Any) -> Game:
    board = chess.Board(fen)
    boards = []
    for move in moves.split():
        boards.append(board.copy(stack=False))
        board.push_uci(move)
    parsed = tuple(chess.Move.from_uci(move) for move in moves.split())
    return Game(
        **{
            "game_id": game_id,
            "source": "test.pgn",
            "offset": 7,
            "boards": tuple(boards),
            "moves": parsed,
            "is_label": tuple(is_label) if is_label else (True,) * len(parsed),
            **facts,
        }
    )


def listed(fen: str, *, game_id: str = "listed") -> Game:
    """Return a listed position, which is a game without moves."""
    return Game(game_id=game_id, source="test.epd", offset=0, boards=(chess.Board(fen),), moves=(), is_label=(True,))


def test_the_split_of_a_game_is_the_same_on_every_machine() -> None:
    shares = {Split.HELDOUT: 0.3, Split.VALIDATION: 0.3, Split.TRAIN: 0.4}
    # printf 'split/engine-0-N' | sha256sum: the first digits are ff, df, 46, 6b, f5, 09.
    splits = [split_of_game(f"engine-0-{number}", shares).value for number in range(6)]
    assert splits == ["train", "train", "heldout", "validation", "train", "heldout"]


def test_the_small_splits_get_one_and_a_half_times_their_share_of_the_games_and_three_tenths_at_most() -> None:
    def shares(*counts: int) -> list[float]:
        config = BoardsConfig(**dict(zip(("num_train", "num_validation", "num_heldout"), counts, strict=True)))
        fractions = split_fractions(config)
        return [fractions[split] for split in (Split.TRAIN, Split.VALIDATION, Split.HELDOUT)]

    assert shares(720, 60, 120) == pytest.approx([0.7, 0.1, 0.2])
    assert shares(300, 600, 300) == pytest.approx([0.4, 0.3, 0.3])


def test_a_quota_takes_labels_only_and_no_position_with_a_single_legal_move() -> None:
    # After 1 e4 f6 2 Qh5+ there is only 2 ... g6.
    quota, report = new_quota(9)
    taken = quota.offer(game_of("e2e4 f7f6 d1h5 g7g6 h5h4", is_label=[True, True, False, True, True]))
    assert sorted(position.label for position in taken) == ["e2e4", "f7f6", "h5h4"]
    assert report.natural_phases[Phase.OPENING] == 5, "all five were met"


def test_moves_that_are_random_or_of_an_excluded_position_are_not_imitated() -> None:
    game = game_of(MOVES, is_label=[ply != 3 for ply in range(10)])
    quota, _ = new_quota(excluded=frozenset({position_key(game.boards[5])}))
    quota.offer(game)
    assert quota.games["g"]["label_plies"] == [0, 1, 2, 4, 6, 7, 8, 9]


def test_a_quota_takes_no_more_from_one_game_and_phase_than_allowed_and_no_more_than_is_missing() -> None:
    limited, _ = new_quota(9, max_per_game_and_phase=4)
    assert len(limited.offer(game_of(MOVES))) == 4
    short, _ = new_quota(2, max_per_game_and_phase=4)
    taken = short.offer(game_of(MOVES))
    assert short.missing == {**in_each_cell(2), (taken[0].split, Phase.OPENING): 0}
    assert short.offer(game_of("d2d4 d7d5", game_id="g")) == [], "the cell is full"


def test_a_position_met_again_or_in_a_mirror_is_a_duplicate() -> None:
    quota, report = new_quota()
    assert len(quota.offer(game_of("e2e4 e7e5 g1f3", game_id="one"))) == 3
    assert quota.offer(game_of("e2e4 e7e5 g1f3", game_id="two")) == []
    mirrored = chess.Board().mirror().fen()
    [taken] = quota.offer(game_of("e7e5 e2e4 g8f6 g1f3", game_id="three", fen=mirrored))
    assert taken.label == "g1f3", "only the position before it is new"
    assert report.duplicates == 6
    assert report.games == 3


def test_what_a_quota_takes_from_a_game_depends_on_seed_and_game_alone() -> None:
    def taken(seed: int, *, after: str = "") -> list[str]:
        quota, _ = new_quota(seed=seed, max_per_game_and_phase=3)
        if after:
            quota.offer(game_of(after, game_id="other", fen=ROOK_ENDING))
        return [position.fen for position in quota.offer(game_of(MOVES))]

    assert taken(1) == taken(1) == taken(1, after="d4d7 f7e8")
    assert any(taken(1) != taken(seed) for seed in range(2, 6))


def test_judged_positions_and_their_mirrors_are_left_out_and_counted() -> None:
    judged = chess.Board()
    judged.push_uci("e2e4")
    quota, report = new_quota(excluded={position_key(judged.mirror())})
    taken = quota.offer(game_of("e2e4 e7e5 g1f3"))
    assert sorted(position.label for position in taken) == ["e2e4", "g1f3"]
    assert report.left_out == {"judged": 1}
    assert report.duplicates == 0
    quota.offer(game_of("e2e4 e7e5 g1f3", game_id="again"))
    assert report.left_out == {"judged": 1}, "one position, counted once"


def test_what_is_given_back_is_wanted_again_counted_and_never_taken_again() -> None:
    quota, report = new_quota(1)
    [position] = quota.offer(listed(ROOK_ENDING))
    cell = position.split, Phase.ENDGAME
    assert quota.missing == {**in_each_cell(1), cell: 0}
    quota.discard(position, "engine failure")
    assert quota.missing == in_each_cell(1)
    assert report.left_out == {"engine failure": 1}
    assert quota.offer(listed(ROOK_ENDING)) == []
    [other] = quota.offer(listed("8/5k2/8/8/4R3/8/5K2/8 w - - 0 1"))
    assert other.fen != position.fen
    assert quota.missing[cell] == 0


def test_a_game_is_needed_as_long_as_one_phase_of_its_split_is() -> None:
    quota, _ = new_quota(1)
    split = quota.offer(listed(ROOK_ENDING))[0].split
    assert quota.needs("listed")
    quota.missing.update({(split, phase): 0 for phase in PHASES})
    assert not quota.needs("listed")


def test_a_shortage_names_what_rejected_the_games_and_only_the_remedies_for_that() -> None:
    """A9: most games are of variants, and no filter has dropped any."""
    quota, report = new_quota(5)
    for name in ("Atomic", "Chess960", "Atomic"):
        report.reject(Rejection(source="a.pgn", offset=0, reason=Reason.VARIANT, detail=name))
    config = BoardsConfig(files=("a.pgn",))
    said = shortage_text(in_each_cell(5), quota.missing, report, config)
    assert "(rejected: 3 of variants (Atomic 2, Chess960 1), because only standard chess is learned;" in said
    assert "Give more games of standard chess, raise" in said
    report.reject(Rejection(source="a.pgn", offset=0, reason=Reason.FILTERED, detail="min_rating"))
    said = shortage_text(in_each_cell(5), quota.missing, report, config)
    assert "1 filtered: min_rating, 3 of variants" in said
    assert "the first" not in said
    for number in range(2):
        report.reject(Rejection(source="a.pgn", offset=number, reason=Reason.ILLEGAL_MOVE, detail="Sf3 is not English notation"))
    said = shortage_text(in_each_cell(5), quota.missing, report, config)
    assert "2 illegal move, 3 of variants" in said
    assert "standard chess is learned; the first: a.pgn, game 1: illegal move (Sf3 is not English notation); 0 repeated" in said
    assert said.endswith(
        "Give more games of standard chess, loosen boards.min_rating, raise boards.max_per_game_and_phase = 4,"
        " or set boards.num_units = 1, because units do not share games."
    )
    said = shortage_text(in_each_cell(5), quota.missing, SourceReport(), BoardsConfig(num_units=1))
    assert said.endswith("Set boards.files, or raise boards.max_per_game_and_phase = 4.")


def test_fewer_boards_than_were_wanted_are_refused_below_the_least_number_and_below_a_step() -> None:
    few, many = in_each_cell(3), in_each_cell(20)
    assert refusal(few, in_each_cell(0), states_per_step=9) == ""
    assert "states_per_step = 10 boards, but there are 9" in refusal(few, in_each_cell(0), states_per_step=10)
    assert "train/opening has 2 of the 3 needed" in refusal(few, in_each_cell(1), states_per_step=1)
    assert refusal(many, in_each_cell(10), states_per_step=30) == ""
    assert "heldout/endgame has 9 of the 10 needed" in refusal(many, in_each_cell(11), states_per_step=1)


def position(number: int, split: Split, phase: Phase, *, key: int | None = None) -> Position:
    named = f"key {number if key is None else key}"
    return Position(fen="", key=named, phase=phase, split=split, label="", game_id=f"game {number}", ply=number, source="", offset=0)


MADE_UP = [position(number, *cell) for number, cell in enumerate((split, phase) for split in Split for phase in PHASES for _ in range(7))]
# Two boards of each phase of the training split are in another split as well.
MADE_UP += [
    position(100 + twin.ply, split, twin.phase, key=twin.ply)
    for start in (0, 7, 14)
    for twin, split in zip(MADE_UP[start:], [Split.HELDOUT, Split.VALIDATION], strict=False)
]


@settings(max_examples=30)
@given(st.permutations(range(len(MADE_UP))))
def test_what_is_kept_does_not_depend_on_the_order_of_the_parts(order: list[int]) -> None:
    wanted = in_each_cell(5)
    straight, num_duplicates, _ = cut_to_quota(MADE_UP, wanted, max_per_game_and_phase=1_000)
    shuffled = [MADE_UP[index] for index in order]
    kept, num_shuffled_duplicates, _ = cut_to_quota(shuffled, wanted, max_per_game_and_phase=1_000)
    assert [shuffled[index] for index in kept] == [MADE_UP[index] for index in straight]
    assert num_shuffled_duplicates == num_duplicates


def test_of_equal_positions_in_several_splits_the_one_that_judges_stays() -> None:
    phase = Phase.OPENING
    for splits, stays in (
        ([Split.TRAIN, Split.VALIDATION, Split.HELDOUT], Split.HELDOUT),
        ([Split.TRAIN, Split.VALIDATION], Split.VALIDATION),
    ):
        equal = [position(number, split, phase, key=0) for number, split in enumerate(splits)]
        kept, num_duplicates, _ = cut_to_quota(equal, {**in_each_cell(0), (stays, phase): 1}, max_per_game_and_phase=1_000)
        assert [equal[index].split for index in kept] == [stays]
        assert num_duplicates == len(splits) - 1
        assert cut_to_quota(equal, in_each_cell(0), max_per_game_and_phase=1_000)[1] == len(splits) - 1, "of boards that are not kept, too"


def test_a_game_met_under_two_texts_gives_no_more_boards_than_any_other() -> None:
    cell = Split.TRAIN, Phase.OPENING
    positions = [replace(position(number, *cell), game_id="one") for number in range(20)]
    kept, num_duplicates, missing = cut_to_quota(positions, {**in_each_cell(0), cell: 20}, max_per_game_and_phase=3)
    assert (len(kept), num_duplicates, missing[cell]) == (3, 0, 17)
