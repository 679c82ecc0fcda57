"""Rules on the values of one row of the table of boards, and on the engine scores they were computed from."""

from collections.abc import Callable, Sequence
from typing import Final

import chess

from data_checks.rules import ENGINE_REMEDY, MADE_BY_OTHER_CODE, BoardReading, RowRule
from grpo.board.draws import drawing_moves
from grpo.dataset.table import Split
from grpo.engine.answers import Score
from grpo.engine.move_values import TRANSFORMS
from grpo.settings.tree import ValuesConfig

TOLERANCE: Final = 1e-6
"""Values are stored as float32, whose precision below 1 is 6e-8."""
_NUM_SHOWN: Final = 3


def value_rules(config: ValuesConfig) -> tuple[RowRule[BoardReading], ...]:
    """Return the rules, in the order in which to fix violations."""
    return (
        RowRule(
            name="values_complete",
            meaning="There is one value for each legal move.",
            remedy=ENGINE_REMEDY,
            breach=_wrong_count("values"),
        ),
        RowRule(
            name="values_in_range",
            meaning="Every value is a number within [0, 1].",
            remedy=ENGINE_REMEDY,
            breach=_not_probability("values"),
        ),
        RowRule(
            name="scores_complete",
            meaning="There are as many centipawns, mate_in and expected as legal moves.",
            remedy=ENGINE_REMEDY,
            breach=_scores_missing,
        ),
        RowRule(
            name="one_score_a_move",
            meaning="Each move has centipawns or a distance to mate, and never both.",
            remedy=ENGINE_REMEDY,
            breach=_not_one_score,
        ),
        RowRule(
            name="expected_in_range",
            meaning="Where the engine states an expected score, it is a number within [0, 1].",
            remedy=ENGINE_REMEDY,
            breach=_bad_expected,
        ),
        RowRule(
            name="values_as_scores",
            meaning=f"The values are what the transform {config.transform} makes of the scores beside them, to {TOLERANCE:g}.",
            remedy="the boards were valued with other settings or by other code; make them again with these settings",
            breach=_not_as_scores(config),
        ),
        RowRule(
            name="values_rise_with_scores",
            meaning="No move of a board is worth less than one with a worse score.",
            remedy=ENGINE_REMEDY,
            breach=_not_rising,
        ),
        RowRule(
            name="mates_are_mates",
            meaning="A move that is said to mate at once leaves a checkmate on the board.",
            remedy=ENGINE_REMEDY,
            breach=_no_mate,
        ),
        RowRule(
            name="draws_are_draws",
            meaning="A move that ends the game in a draw by rule (stalemate, material, fifty moves) has the score 0.",
            remedy=MADE_BY_OTHER_CODE,
            breach=_no_draw,
        ),
        RowRule(
            name="strong_values_on_heldout",
            meaning="Held-out boards, and no others, have values by the evaluation's stronger search.",
            remedy=MADE_BY_OTHER_CODE,
            breach=_misplaced_strong_values,
        ),
        RowRule(
            name="strong_values_complete",
            meaning="Where there are strong values, there is one for each legal move.",
            remedy=ENGINE_REMEDY,
            breach=_wrong_count("strong_values"),
        ),
        RowRule(
            name="strong_values_in_range",
            meaning="Every strong value is a number within [0, 1].",
            remedy=ENGINE_REMEDY,
            breach=_not_probability("strong_values"),
        ),
    )


def share_expected(reading: BoardReading) -> str | None:
    """Return for how many moves the engine gave an expected score (`all`, `some` or `none`); None if the board does not show it.

    Moves that draw by rule are ignored: they always have 1/2.
    """
    stated = {score.expected is not None for score in reading.scores or () if (score.expected, score.value) != (0.5, 0)}
    if not stated:
        return None
    return "some" if len(stated) > 1 else "all" if stated.pop() else "none"


def _wrong_count(column: str) -> Callable[[BoardReading], str | None]:
    def breach(reading: BoardReading) -> str | None:
        values, legal = reading.row[column], reading.legal_moves
        if legal is None or values is None:
            return None
        return "" if len(values) == len(legal) else f"{reading.row['fen']}: {len(values)} {column} for {len(legal)} legal moves"

    return breach


def _listed(reading: BoardReading, bad: Sequence[str]) -> str:
    if not bad:
        return ""
    more = f" and {len(bad) - _NUM_SHOWN} more" if len(bad) > _NUM_SHOWN else ""
    return f"{reading.row['fen']}: {', '.join(bad[:_NUM_SHOWN])}{more}"


def _not_probability(column: str) -> Callable[[BoardReading], str | None]:
    def breach(reading: BoardReading) -> str | None:
        values: Sequence[float | None] | None = reading.row[column]
        if values is None:
            return None
        # NaN is outside every range, so it needs no separate test.
        return _listed(
            reading, [f"{column}[{index}] = {value}" for index, value in enumerate(values) if value is None or not 0 <= value <= 1]
        )

    return breach


def _scores_missing(reading: BoardReading) -> str | None:
    legal = reading.legal_moves
    columns = {name: reading.row[name] for name in ("centipawns", "mate_in", "expected")}
    if legal is None or any(column is None for column in columns.values()):
        return None
    bad = [f"{len(column)} {name}" for name, column in columns.items() if len(column) != len(legal)]
    return f"{reading.row['fen']}: {', '.join(bad)} for {len(legal)} legal moves" if bad else ""


def _not_one_score(reading: BoardReading) -> str | None:
    centipawns, mate_in = reading.row["centipawns"], reading.row["mate_in"]
    if centipawns is None or mate_in is None or len(centipawns) != len(mate_in):
        return None
    odd = [(index, *pair) for index, pair in enumerate(zip(centipawns, mate_in, strict=True)) if pair.count(None) != 1]
    return _listed(reading, [f"[{index}]: centipawns {score} and mate_in {distance}" for index, score, distance in odd])


def _bad_expected(reading: BoardReading) -> str | None:
    expected: Sequence[float | None] | None = reading.row["expected"]
    if expected is None:
        return None
    return _listed(
        reading, [f"expected[{index}] = {value}" for index, value in enumerate(expected) if value is not None and not 0 <= value <= 1]
    )


def _not_as_scores(config: ValuesConfig) -> Callable[[BoardReading], str | None]:
    transform = TRANSFORMS[config.transform]

    def breach(reading: BoardReading) -> str | None:
        values, scores = reading.values, reading.scores
        if values is None or scores is None or _bad_expected(reading):
            return None
        made = transform(scores, config)
        # Check all moves at once first, because violations are rare.
        if max((abs(value - due) for value, due in zip(values, made, strict=True)), default=0.0) <= TOLERANCE:
            return ""
        moves = reading.row["moves"]
        bad = [
            f"{move} ({_shown(score)}) has {value:.6f}, and {due:.6f} is due"
            for move, score, value, due in zip(moves, scores, values, made, strict=True)
            if abs(value - due) > TOLERANCE
        ]
        return _listed(reading, bad)

    return breach


def _shown(score: Score) -> str:
    return f"mate in {score.value}" if score.is_mate else f"{score.value} centipawns"


def _rank(score: Score) -> tuple[int, int]:
    """Return the sort key of a score: mates (the nearer the better), then centipawns, then being mated (the later the better)."""
    if not score.is_mate:
        return 0, score.value
    return (1, -score.value) if score.value > 0 else (-1, -score.value)


def _not_rising(reading: BoardReading) -> str | None:
    values, scores = reading.values, reading.scores
    if values is None or scores is None:
        return None
    best: tuple[tuple[int, int], float, str, Score] | None = None
    # Equal scores are sorted by value, so that a value below the best previous one is below the value of a worse score.
    for move in sorted(zip(map(_rank, scores), values, reading.row["moves"], scores, strict=True)):
        if best is not None and move[1] < best[1] - TOLERANCE:
            return (
                f"{reading.row['fen']}: {move[2]} ({_shown(move[3])}) is worth {move[1]:.6f},"
                f" and {best[2]} ({_shown(best[3])}) {best[1]:.6f}"
            )
        if best is None or move[1] > best[1]:
            best = move
    return ""


def _no_mate(reading: BoardReading) -> str | None:
    board, scores = reading.board, reading.scores
    if board is None or scores is None or reading.row["moves"] != reading.legal_moves:
        return None
    bad = []
    for text, score in zip(reading.row["moves"], scores, strict=True):
        if score.is_mate and score.value == 1:
            board.push(chess.Move.from_uci(text))
            if not board.is_checkmate():
                bad.append(f"{text} is said to mate, and does not")
            board.pop()
    return _listed(reading, bad)


def _no_draw(reading: BoardReading) -> str | None:
    board, scores = reading.board, reading.scores
    if board is None or scores is None or reading.row["moves"] != reading.legal_moves:
        return None
    drawing = {move.uci() for move in drawing_moves(board)}
    bad = [
        f"{text} draws by rule, and has {_shown(score)}"
        for text, score in zip(reading.row["moves"], scores, strict=True)
        if text in drawing and (score.is_mate or score.value != 0)
    ]
    return _listed(reading, bad)


def _misplaced_strong_values(reading: BoardReading) -> str | None:
    split, has_strong = reading.row["split"], reading.row["strong_values"] is not None
    if split not in tuple(Split):
        return None
    if has_strong == (split == Split.HELDOUT):
        return ""
    return f"{reading.row['fen']}: a board of the {split} split {'with' if has_strong else 'without'} strong_values"
