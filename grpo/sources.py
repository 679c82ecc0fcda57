"""Where positions come from: games that Stockfish plays against itself (the embedded default), or a PGN file.

Games are offered to a `Quota`, which takes a bounded number of positions of each phase from each game until every cell of split and
phase is full. Which split a game belongs to depends on the game alone, so that no game is on both sides.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import chess
import chess.pgn
import numpy as np

from grpo.boards import Position, Split
from grpo.config import BoardsConfig, EngineGames
from grpo.encoding import position_key
from grpo.engine import EngineError, EnginePool, Query
from grpo.errors import PlainError
from grpo.phases import PHASES, Phase, phase_of
from grpo.seeding import numpy_stream

_SURPLUS: Final = 1.06  # A unit makes a little more than its share, since two units may find the same opening positions.
_MAX_IDLE_GAMES: Final = 300  # Engine games in a row that add nothing: what is missing will not come.
_RESULTS: Final = ("1-0", "0-1", "1/2-1/2", "*")


class SourceError(PlainError, ValueError):
    """The source cannot give the boards that were asked for; the message says what it has and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """The moves of one game, and which of them may become labels."""

    game_id: str
    source: str
    offset: int
    start_fen: str
    moves: tuple[chess.Move, ...]
    is_label: tuple[bool, ...]
    """For each move, whether the player meant it (a random move made for variety is none)."""
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None


@dataclass(slots=True)
class SourceReport:
    """What was read, and what was left out for which reason."""

    num_games: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason -> games."""
    natural_phases: Counter[str] = field(default_factory=Counter)
    """Phase -> positions met before balancing."""
    num_duplicates: int = 0


def split_of(game_id: str, shares: Mapping[Split, float]) -> Split:
    """Return the split of a game: a hash of its id, so that no order, file or machine changes it."""
    point = int.from_bytes(hashlib.sha256(f"split/{game_id}".encode()).digest()[:8], "big") / 2**64
    for split in (Split.HELDOUT, Split.VALIDATION):
        if point < shares[split]:
            return split
        point -= shares[split]
    return Split.TRAIN


def split_shares(config: BoardsConfig) -> dict[Split, float]:
    """Return the share of games that each split gets, in proportion to the boards it needs.

    A small split gets half as much again: it has few games, and a shortage there would keep the large ones waiting.
    """
    total = config.num_train + config.num_validation + config.num_heldout
    heldout, validation = (min(0.3, 1.5 * count / total) for count in (config.num_heldout, config.num_validation))
    return {Split.HELDOUT: heldout, Split.VALIDATION: validation, Split.TRAIN: 1 - heldout - validation}


def wanted_boards(config: BoardsConfig) -> dict[tuple[Split, Phase], int]:
    """Return how many boards each split has of each phase, exactly."""
    counts = {Split.TRAIN: config.num_train, Split.VALIDATION: config.num_validation, Split.HELDOUT: config.num_heldout}
    return {(split, phase): count // len(PHASES) for split, count in counts.items() for phase in PHASES}


class Quota:
    """Takes positions from games until each cell of (split, phase) has what it wants."""

    def __init__(self, wanted: Mapping[tuple[Split, Phase], int], config: BoardsConfig, seed: int) -> None:
        self.positions: list[Position] = []
        self.report = SourceReport()
        self._missing = dict(wanted)
        self._shares = split_shares(config)
        self._per_game = config.max_per_game_and_phase
        self._seed = seed
        self._seen: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether nothing is missing any more."""
        return not any(self._missing.values())

    def missing(self) -> dict[str, int]:
        """Return what is still missing, by "split/phase"."""
        return {f"{split}/{phase}": count for (split, phase), count in self._missing.items() if count}

    def offer(self, game: Game) -> int:
        """Take what is needed from the game and return how many positions that was."""
        self.report.num_games += 1
        split = split_of(game.game_id, self._shares)
        by_phase: dict[Phase, list[tuple[int, chess.Board]]] = {phase: [] for phase in PHASES}
        board = chess.Board(game.start_fen)
        for ply, (move, is_label) in enumerate(zip(game.moves, game.is_label, strict=True)):
            phase = phase_of(board)
            self.report.natural_phases[phase] += 1
            # One legal move leaves nothing to learn, and a group of it no spread.
            if is_label and self._missing[split, phase] and board.legal_moves.count() > 1:
                by_phase[phase].append((ply, board.copy(stack=False)))
            board.push(move)
        taken = 0
        rng = numpy_stream(self._seed, "positions", game.game_id)
        for phase, candidates in by_phase.items():
            taken_of_phase = 0
            for choice in rng.permutation(len(candidates)):
                if taken_of_phase == min(self._per_game, self._missing[split, phase]):
                    break
                ply, position = candidates[choice]
                key = position_key(position)
                if key in self._seen:
                    self.report.num_duplicates += 1
                    continue
                self._seen.add(key)
                taken_of_phase += 1
                self.positions.append(
                    Position(
                        fen=position.fen(),
                        key=key,
                        phase=phase,
                        split=split,
                        move_played=game.moves[ply].uci(),
                        game_id=game.game_id,
                        ply=ply,
                        source=game.source,
                        offset=game.offset,
                        white_rating=game.white_rating,
                        black_rating=game.black_rating,
                        date=game.date,
                    )
                )
            self._missing[split, phase] -= taken_of_phase
            taken += taken_of_phase
        return taken


def shortage_message(missing: Mapping[str, int], report: SourceReport, what: str) -> str:
    """Return the text of a SourceError for boards that could not be found, with the histogram of what was met."""
    met = ", ".join(f"{report.natural_phases[phase]:,} {phase}" for phase in PHASES)
    lacking = ", ".join(f"{count:,} of {cell}" for cell, count in missing.items())
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in sorted(report.rejected.items())) or "none"
    return (
        f"{what} cannot fill the quotas: missing {lacking}. Met {met} positions in {report.num_games:,} games"
        f" ({report.num_duplicates:,} duplicates; games rejected: {rejected}). Give more games, lower boards.num_train,"
        " boards.num_validation or boards.num_heldout, or raise boards.max_per_game_and_phase"
    )


def engine_unit(config: BoardsConfig, *, unit: int, seed: int, pool: EnginePool) -> Quota:
    """Return the positions of one of the `config.num_units` parts of an engine-made dataset.

    A unit's games depend on the seed and the unit's number alone. Raises SourceError when its quotas cannot be filled.
    """
    share = _SURPLUS / config.num_units
    wanted = {cell: int(np.ceil(count * share)) + 1 for cell, count in wanted_boards(config).items()}
    quota = Quota(wanted, config, seed)
    idle_games = 0
    for game in engine_games(config.games, unit=unit, seed=seed, pool=pool, report=quota.report):
        idle_games = 0 if quota.offer(game) else idle_games + 1
        if quota.is_full:
            return quota
        if idle_games >= _MAX_IDLE_GAMES:
            break
    raise SourceError(
        shortage_message(quota.missing(), quota.report, f"engine games (unit {unit} of {config.num_units})") + ", or boards.games.max_plies"
    )


def engine_games(config: EngineGames, *, unit: int, seed: int, pool: EnginePool, report: SourceReport) -> Iterator[Game]:
    """Yield engine games for ever; one during which the engine failed is played again from its seed, then counted and left out."""
    number = 0
    while True:
        # A kept hash makes a move depend on what came before, so a game that failed half-way is played again as a whole.
        for _ in range(2):
            try:
                yield _engine_game(config, unit=unit, number=number, seed=seed, pool=pool)
                break
            except EngineError:
                continue
        else:
            report.rejected["engine failure"] += 1
            if report.rejected["engine failure"] > _MAX_IDLE_GAMES:
                raise EngineError("the engine fails in every game; run it by hand, or reinstall it")
        number += 1


def _engine_game(config: EngineGames, *, unit: int, number: int, seed: int, pool: EnginePool) -> Game:
    rng = numpy_stream(seed, "engine_game", unit, number)
    nodes = {color: int(rng.choice(config.nodes)) for color in chess.COLORS}
    num_opening_plies = int(rng.integers(0, config.random_opening_plies + 1))
    board = chess.Board()
    is_label: list[bool] = []
    is_fresh = True
    while len(is_label) < config.max_plies and not _is_over(board):
        if len(is_label) < num_opening_plies or rng.random() < config.random_move_probability:
            legal = sorted(board.legal_moves, key=chess.Move.uci)
            board.push(legal[int(rng.integers(len(legal)))])
            is_label.append(False)
            continue
        [answer] = pool.search([Query(fen=board.fen(), limit=f"nodes {nodes[board.turn]}", is_fresh=is_fresh)])
        if isinstance(answer, EngineError):
            raise answer
        is_fresh = False
        board.push_uci(answer.best_move)
        is_label.append(True)
    return Game(
        game_id=f"engine-{unit}-{number}",
        source="engine",
        offset=number,
        start_fen=chess.STARTING_FEN,
        moves=tuple(board.move_stack),
        is_label=tuple(is_label),
    )


def _is_over(board: chess.Board) -> bool:
    # Not `board.is_game_over()`: two plies of shuffling at the end teach nothing, and its repetition check is dear.
    return board.halfmove_clock >= 60 or board.is_insufficient_material() or not any(board.legal_moves)


def pgn_positions(config: BoardsConfig, *, seed: int) -> Quota:
    """Return the positions of a PGN file, read only as far as the quotas need.

    Raises SourceError when the file has no games or too few of some phase.
    """
    path = Path(config.path)
    quota = Quota(wanted_boards(config), config, seed)
    for game in pgn_games(path, quota.report):
        quota.offer(game)
        if quota.is_full:
            return quota
    if not quota.report.num_games:
        rejected = ", ".join(f"{count:,} {reason}" for reason, count in sorted(quota.report.rejected.items()))
        raise SourceError(
            f"{path}: no usable game in this file ({rejected or 'it holds no games at all'}); give a PGN file of standard chess"
        )
    raise SourceError(shortage_message(quota.missing(), quota.report, str(path)))


def pgn_games(path: Path, report: SourceReport) -> Iterator[Game]:
    """Yield the usable games of a plain PGN file; the others are counted in the report under their reason.

    Raises SourceError when the file cannot be read.
    """
    try:
        file = path.open(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; boards.path must name a plain PGN file") from None
    with file:
        while True:
            offset = _skip_blank_lines(file)
            game = chess.pgn.read_game(file)
            if game is None:
                return
            reason = _rejection(game)
            if reason:
                report.rejected[reason] += 1
                continue
            moves = tuple(game.mainline_moves())
            text = " ".join([game.board().fen(), *(move.uci() for move in moves)])
            headers = game.headers
            yield Game(
                # Players and date are part of it: the same moves played twice are two games, and one game met twice is one.
                game_id=hashlib.sha256(
                    "/".join([text, *(headers.get(tag, "") for tag in ("White", "Black", "Date", "UTCTime", "Site"))]).encode()
                ).hexdigest()[:20],
                source=path.name,
                offset=offset,
                start_fen=game.board().fen(),
                moves=moves,
                is_label=(True,) * len(moves),
                white_rating=_rating(headers.get("WhiteElo")),
                black_rating=_rating(headers.get("BlackElo")),
                date=headers.get("UTCDate") or headers.get("Date"),
            )


def _skip_blank_lines(file: TextIO) -> int:
    """Go to the next line with anything on it and return its offset."""
    while True:
        offset = file.tell()
        line = file.readline()
        if line.strip() or not line:
            file.seek(offset)
            return offset


def _rejection(game: chess.pgn.Game) -> str | None:
    """Return why a game is of no use here, or None."""
    headers = game.headers
    if headers.get("Variant", "Standard").lower() not in ("standard", "chess", "from position", "normal"):
        return "variant"
    if game.errors:
        return "illegal or unreadable moves"
    if headers.get("Result", "*") not in _RESULTS:
        return "unknown result"
    board = game.board()
    if board.chess960 or not board.is_valid():
        return "impossible start position"
    moves = list(game.mainline_moves())
    if not moves:
        return "no moves"
    if any(not move for move in moves):
        return "null move"
    if any('[Event "' in node.comment for node in game.mainline()):
        return "comment that swallows the next game"
    end = game.end().board()
    if end.is_checkmate() and headers.get("Result", "*") not in ("*", "0-1" if end.turn == chess.WHITE else "1-0"):
        return "result against the mate on the board"
    return None


def _rating(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def unit_positions(
    config: BoardsConfig, *, units: Iterable[int], seed: int, pool: EnginePool
) -> Iterator[tuple[int, list[Position], SourceReport]]:
    """Yield (unit, positions, report) for each of the given parts of the dataset.

    A PGN file is read once; its exact quota of positions is then dealt out to the units, and the report goes with unit 0.
    """
    if config.source == "engine":
        for unit in units:
            made = engine_unit(config, unit=unit, seed=seed, pool=pool)
            yield unit, made.positions, made.report
        return
    read = pgn_positions(config, seed=seed)
    for unit in units:
        yield unit, read.positions[unit :: config.num_units], read.report if unit == 0 else SourceReport()


def cut_to_quota(positions: list[Position], wanted: Mapping[tuple[Split, Phase], int]) -> tuple[list[int], int]:
    """Return the indices of exactly the wanted boards, and how many duplicates were met on the way.

    Which boards stay depends on a hash of their keys and never on the order of the parts. Of equal boards in several splits the
    held-out one stays, then the validation one, so that the boards that judge are never thinned out by those that train.

    Raises SourceError when a cell falls short.
    """
    rank = {Split.HELDOUT: 0, Split.VALIDATION: 1, Split.TRAIN: 2}
    hashed = [hashlib.sha256(position.key.encode()).digest() for position in positions]
    order = sorted(
        range(len(positions)),
        key=lambda i: (rank[positions[i].split], hashed[i], positions[i].game_id, positions[i].ply),
    )
    missing = dict(wanted)
    seen: set[str] = set()
    kept: list[int] = []
    num_duplicates = 0
    for index in order:
        position = positions[index]
        if position.key in seen:
            num_duplicates += 1
        elif missing[position.split, position.phase]:
            seen.add(position.key)
            missing[position.split, position.phase] -= 1
            kept.append(index)
    short = {f"{split}/{phase}": count for (split, phase), count in missing.items() if count}
    if short:
        report = SourceReport(num_duplicates=num_duplicates)
        report.natural_phases.update(position.phase for position in positions)
        report.num_games = len({position.game_id for position in positions})
        raise SourceError(shortage_message(short, report, "the joined parts"))
    return kept, num_duplicates
