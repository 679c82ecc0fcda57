"""Quotas: the number of boards wanted of each cell, and the choice of boards from games.

A cell is a split (train, validation, held-out) with a game phase. A unit is a parallel part of the dataset build.
"""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from pydantic import RootModel

from grpo.base.seeding import numpy_stream
from grpo.board.encoding import fen_of, key_of_fen, position_key, turned_fen
from grpo.board.phases import PHASES, Phase, phase_of
from grpo.dataset.games import Game, Reason, Rejection
from grpo.dataset.table import Position, Split
from grpo.settings.tree import BoardsConfig

QuotaCell = tuple[Split, Phase]
_GAME_FIELDS: Final = ("game_id", "source", "offset", "white_rating", "black_rating", "date")  # Boards and game rows copy these.
_MAX_NAMED: Final = 10  # Rejections that a report lists.
_VARIANT: Final = f"{Reason.VARIANT}: "
LEAST_PER_CELL: Final = 10  # A run with fewer boards in a cell is refused, unless the settings ask for fewer.


def split_of_game(game_id: str, fractions: Mapping[Split, float]) -> Split:
    point = int.from_bytes(hashlib.sha256(f"split/{game_id}".encode()).digest()[:8], "big") / 2**64
    for split in (Split.HELDOUT, Split.VALIDATION):
        if point < fractions[split]:
            return split
        point -= fractions[split]
    return Split.TRAIN


def split_fractions(config: BoardsConfig) -> dict[Split, float]:
    """Return each split's fraction of the games.

    Validation and held-out get 1.5 times their share of boards, at most 0.3. So these small splits are full before the training split.
    """
    total = config.num_train + config.num_validation + config.num_heldout
    heldout, validation = (min(0.3, 1.5 * count / total) for count in (config.num_heldout, config.num_validation))
    return {Split.HELDOUT: heldout, Split.VALIDATION: validation, Split.TRAIN: 1 - heldout - validation}


def boards_per_cell(config: BoardsConfig) -> dict[QuotaCell, int]:
    """Divide each split's boards equally among the phases; a remainder is dropped."""
    counts = {Split.TRAIN: config.num_train, Split.VALIDATION: config.num_validation, Split.HELDOUT: config.num_heldout}
    return {(split, phase): count // len(PHASES) for split, count in counts.items() for phase in PHASES}


@dataclass
class SourceReport:
    """`JoinedBoards` explains the other fields."""

    games: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # Reason, `filtered: SETTING` or `variant: NAME` -> games or lines.
    first_rejected: list[str] = field(default_factory=list)  # Source, location and reason; without filtered games and variants.
    natural_phases: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(PHASES, 0)))
    duplicates: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # Reason -> positions: `judged` (in `boards.exclude`), `engine failure`.

    def reject(self, rejection: Rejection) -> None:
        if rejection.reason in (Reason.FILTERED, Reason.VARIANT):
            self.rejected[f"{rejection.reason}: {rejection.detail}"] += 1
            return
        self.rejected[rejection.reason.value] += 1
        if len(self.first_rejected) < _MAX_NAMED:
            self.first_rejected.append(str(rejection))

    @classmethod
    def joined(cls, parts: Iterable["SourceReport"]) -> "SourceReport":
        report = cls()
        for part in parts:
            report.games += part.games
            report.duplicates += part.duplicates
            report.first_rejected += part.first_rejected
            report.rejected.update(part.rejected)
            report.natural_phases.update(part.natural_phases)
            report.left_out.update(part.left_out)
        report.first_rejected = sorted(report.first_rejected)[:_MAX_NAMED]
        return report


class UnitReports(RootModel[dict[str, SourceReport]]):
    """Unit -> report."""


class Quota:
    """Selects positions from games until each cell is full."""

    def __init__(self, wanted: Mapping[QuotaCell, int], config: BoardsConfig, *, seed: int, excluded: Container[str] = frozenset()) -> None:
        """`wanted`: cell -> boards. `excluded`: keys of positions that are never selected."""
        self.missing = dict(wanted)  # Cell -> boards still needed.
        self.games: dict[str, dict[str, Any]] = {}  # Game id -> row of `GAME_SCHEMA`.
        self.report = SourceReport()
        self._config = config
        self._fractions = split_fractions(config)
        self._seed = seed
        self._excluded = excluded
        self._seen: set[str] = set()

    @property
    def is_full(self) -> bool:
        return not any(self.missing.values())

    def needs(self, game_id: str) -> bool:
        split = split_of_game(game_id, self._fractions)
        return any(self.missing[split, phase] for phase in PHASES)

    def offer(self, game: Game) -> list[Position]:
        """Select random positions for cells that need boards, at most `boards.max_per_game_and_phase` of a phase."""
        self.report.games += 1
        split = split_of_game(game.game_id, self._fractions)
        plies: dict[Phase, list[int]] = {phase: [] for phase in PHASES}
        for ply, (board, is_label) in enumerate(zip(game.boards, game.is_label, strict=True)):
            phase = phase_of(board)
            self.report.natural_phases[phase] += 1
            if is_label:
                plies[phase].append(ply)
        selected: list[Position] = []
        rng = numpy_stream(self._seed, "positions", game.game_id)
        for phase, candidates in plies.items():
            num_needed = min(self._config.max_per_game_and_phase, self.missing[split, phase])
            if not num_needed or not candidates:
                continue
            # Lazy, because `_position` marks each position as seen.
            positions = (self._position(game, candidates[choice], split, phase) for choice in rng.permutation(len(candidates)))
            chosen = list(islice(filter(None, positions), num_needed))
            self.missing[split, phase] -= len(chosen)
            selected += chosen
        if selected:
            self.games[game.game_id] = self._game_row(game, split)
        return selected

    def _game_row(self, game: Game, split: Split) -> dict[str, Any]:
        keys = [position_key(board) for board in game.boards[: len(game.moves)]]
        return {name: getattr(game, name) for name in _GAME_FIELDS} | {
            "split": split.value,
            "start_fen": game.boards[0].fen(),
            "num_plies": len(game.moves),
            "result": game.result,
            "moves": [move.uci() for move in game.moves],
            "keys": keys,
            "label_plies": [ply for ply, key in enumerate(keys) if game.is_label[ply] and key not in self._excluded],
        }

    def discard(self, position: Position, reason: str) -> None:
        """Count a selected position as missing again. The position is not selected a second time."""
        self.missing[position.split, position.phase] += 1
        self.report.left_out[reason] += 1

    def _position(self, game: Game, ply: int, split: Split, phase: Phase) -> Position | None:
        board = game.boards[ply]
        # A board with a single legal move teaches nothing.
        if len(list(islice(board.legal_moves, 2))) < 2:
            return None
        fen = fen_of(board)
        key = key_of_fen(turned_fen(fen))
        if key in self._seen:
            self.report.duplicates += 1
            return None
        self._seen.add(key)
        if key in self._excluded:
            self.report.left_out["judged"] += 1
            return None
        return Position(
            fen=fen,
            key=key,
            phase=phase,
            split=split,
            label=game.moves[ply].uci() if game.moves else "",
            ply=ply,
            **{name: getattr(game, name) for name in _GAME_FIELDS},
        )


def shortage_text(wanted: Mapping[QuotaCell, int], missing: Mapping[QuotaCell, int], report: SourceReport, config: BoardsConfig) -> str:
    def counts(names: Iterable[Split | Phase]) -> str:
        sums = {name: [sum(count for cell, count in cells.items() if name in cell) for cells in (wanted, missing)] for name in names}
        return ", ".join(f"{name} {total - short:,} of {total:,}" for name, (total, short) in sums.items())

    variants = {name.removeprefix(_VARIANT): count for name, count in report.rejected.items() if name.startswith(_VARIANT)}
    rejected = [f"{count:,} {reason}" for reason, count in sorted(report.rejected.items()) if not reason.startswith(_VARIANT)]
    if variants:
        named = ", ".join(f"{name} {count:,}" for name, count in sorted(variants.items()))
        rejected.append(f"{sum(variants.values()):,} of variants ({named}), because only standard chess is learned")
    filters = [name for name in ("min_rating", "time_controls") if f"{Reason.FILTERED}: {name}" in report.rejected]
    remedies = [f"Give more games{' of standard chess' if variants else ''}" if config.files else "Set boards.files"]
    if filters:
        remedies.append(f"loosen {' and '.join(f'boards.{name}' for name in filters)}")
    remedies.append(f"raise boards.max_per_game_and_phase = {config.max_per_game_and_phase}")
    if config.num_units > 1:
        remedies.append("set boards.num_units = 1, because units do not share games")
    return (
        f"{', '.join(config.files) or 'engine games'}: too few boards in {report.games:,} games: {counts(PHASES)}; {counts(Split)}"
        f" (rejected: {'; the first: '.join([', '.join(rejected) or 'none', *report.first_rejected[:1]])};"
        f" {report.duplicates:,} repeated positions left out)."
        f" {', '.join(remedies[:-1])}, or {remedies[-1]}."
    )


def refusal(wanted: Mapping[QuotaCell, int], missing: Mapping[QuotaCell, int], *, states_per_step: int) -> str:
    """Return the reason why a run cannot train on these boards, or ""."""
    kept = {cell: wanted[cell] - short for cell, short in missing.items()}
    if too_few := {cell: count for cell, count in kept.items() if count < min(wanted[cell], LEAST_PER_CELL)}:
        needed = {cell: min(wanted[cell], LEAST_PER_CELL) for cell in too_few}
        cells = ", ".join(f"{split}/{phase} has {count} of the {needed[split, phase]} needed" for (split, phase), count in too_few.items())
        return f"Too few boards: {cells}"
    if (num_train := sum(count for (split, _), count in kept.items() if split == Split.TRAIN)) < states_per_step:
        return f"A training step takes grpo.states_per_step = {states_per_step} boards, but there are {num_train}: lower this setting"
    return ""


def cut_to_quota(
    positions: Sequence[Position], wanted: Mapping[QuotaCell, int], *, max_per_game_and_phase: int
) -> tuple[list[int], int, dict[QuotaCell, int]]:
    """Select boards from the positions of all units. Return their indices, the number of duplicates, and cell -> missing boards.

    - The lowest hashes of keys win, so the order of units does not matter.
    - Of equal boards, one is selected: held-out if needed, else validation, else training.
    """
    rank = {Split.HELDOUT: 0, Split.VALIDATION: 1, Split.TRAIN: 2}
    hashed = [hashlib.sha256(position.key.encode()).digest() for position in positions]
    order = sorted(range(len(positions)), key=lambda i: (rank[positions[i].split], hashed[i], positions[i].game_id, positions[i].ply))
    missing = dict(wanted)
    seen: set[str] = set()
    num_kept: Counter[tuple[str, Phase]] = Counter()
    kept: list[int] = []
    for index in order:
        position = positions[index]
        has_room = missing[position.split, position.phase] and num_kept[position.game_id, position.phase] < max_per_game_and_phase
        if has_room and position.key not in seen:
            num_kept[position.game_id, position.phase] += 1
            seen.add(position.key)
            missing[position.split, position.phase] -= 1
            kept.append(index)
    return kept, len(positions) - len({position.key for position in positions}), missing
