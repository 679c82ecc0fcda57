"""Annotates chosen games of a match: the policies' probabilities and the engine's scores of all legal moves, ply by ply."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import chess

from grpo.engine.answers import EngineError, Score
from grpo.engine.move_values import value_tables, win_chance
from grpo.engine.pool import EnginePool
from grpo.match.highlights import Highlight
from grpo.match.matches import MatchResult, PlayedGame
from grpo.settings.tree import ValuesConfig

MoveProbabilities = Callable[[Sequence[chess.Board]], Sequence[Mapping[str, float]] | None]
"""Boards with legal moves -> for each, UCI move -> probability at temperature 1, of all legal moves; None if the player has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveNote:
    """What is known about the position in which a move was played."""

    probabilities: Mapping[str, float]
    """UCI move -> probability by the mover's policy; empty if the mover has none."""
    scores: Mapping[str, Score]
    """UCI move -> the engine's score after it, for the mover; empty if the search failed."""

    def chance(self, move: str) -> float | None:
        """Return the mover's win probability after a move; None if it is not known."""
        return win_chance(self.scores[move]) if move in self.scores else None

    def best(self) -> str | None:
        """Return the engine's best move; the first of several."""
        return max(self.scores, key=lambda move: win_chance(self.scores[move]), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedGame:
    """A chosen game with a note for every move."""

    index: int
    """Of the game in its match."""
    why: str
    """The rule that chose it."""
    game: PlayedGame
    white: str
    black: str
    notes: tuple[MoveNote, ...]


def round_number(index: int, first_round: int = 1) -> str:
    """Return the PGN round `pair.game` of a match's game, counted from 1 in the game and from `first_round` in the pair."""
    return f"{index // 2 + first_round}.{index % 2 + 1}"


def annotate(
    result: MatchResult,
    chosen: Sequence[Highlight],
    *,
    policies: tuple[MoveProbabilities | None, MoveProbabilities | None],
    pool: EnginePool,
    config: ValuesConfig,
) -> tuple[AnnotatedGame, ...]:
    """Return the chosen games with notes. The engine searches each position once, as it does for the reward.

    Args:
        result: The match.
        chosen: Its games to annotate.
        policies: Of the first and the second player; None for one that is no policy.
        pool: Engines that were started with `grpo.engine.move_values.engine_options()`.
        config: Whose `depth` limits a search.

    Raises EngineError if several searches in a row fail; a position whose single search failed has no scores.
    """
    return tuple(_annotated(result, highlight, policies, pool, config) for highlight in chosen)


def _annotated(
    result: MatchResult,
    highlight: Highlight,
    policies: tuple[MoveProbabilities | None, MoveProbabilities | None],
    pool: EnginePool,
    config: ValuesConfig,
) -> AnnotatedGame:
    game = result.games[highlight.index]
    boards = positions(game)[:-1]
    white, black = policies if game.first_is_white else policies[::-1]
    probabilities: dict[int, Mapping[str, float]] = {}
    for policy, colour in ((white, chess.WHITE), (black, chess.BLACK)):
        plies = [ply for ply, board in enumerate(boards) if board.turn == colour]
        found = policy([boards[ply] for ply in plies]) if policy is not None and plies else None
        if found is not None:
            probabilities.update(zip(plies, found, strict=True))
    tables = value_tables(boards, pool, config, depth=config.depth)
    names = (result.first, result.second) if game.first_is_white else (result.second, result.first)
    return AnnotatedGame(
        index=highlight.index,
        why=highlight.why,
        game=game,
        white=names[0],
        black=names[1],
        notes=tuple(
            MoveNote(
                probabilities=probabilities.get(ply, {}),
                scores={} if isinstance(table, EngineError) else dict(zip(table.moves, table.scores, strict=True)),
            )
            for ply, table in enumerate(tables)
        ),
    )


def positions(game: PlayedGame) -> list[chess.Board]:
    """Return the boards of a game from its opening to its last position, each with its history."""
    board = chess.Board(game.opening)
    boards = [board.copy()]
    for move in game.moves:
        board.push(chess.Move.from_uci(move))
        boards.append(board.copy())
    return boards
