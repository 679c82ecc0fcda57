"""A selection among tiny policies: what its steps take in, the steps one after the other, and what they leave."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import chess
import chess.pgn
import pytest
from doubles import CPU, TINY, saved_policy, some_boards
from made_boards import write_boards
from made_games import games_in
from made_work import work_in
from presets import tiny_settings

from grpo.base.files import ASIDE, file_hashes, read_json
from grpo.board.encoding import position_key
from grpo.match.policy_players import BestMovePlayer
from grpo.match.replies import Reply, ReplyCounts
from grpo.policy.checkpoints import TrainingState, save_checkpoint
from grpo.policy.distribution import MovePolicy
from grpo.policy.policy import NetworkPolicy, new_policy, weights_hash
from grpo.settings.names import declared
from grpo.settings.tree import Settings, settings_over
from steps import calibrate, confirm, screen, select
from steps.common.policies import network as network_policies
from steps.names import CHECKPOINTS, HISTORY, PGN, REPORT
from steps.run.work import Part

REGRETS = {2: 0.20, 4: 0.21, 6: 0.22}
LAST = 6
"""The last checkpoint, and the only candidate of `ONE`."""
NUM_BOARDS = 12
_MAIN = """
selection.num_candidates = 3
selection.num_screening_pairs = 8
selection.num_confirmation_pairs = 8
evaluation.max_plies = 6
"""
ONE = {"selection": {"num_candidates": 1}}
"""One candidate, which has no screening games."""


class Quitter:
    """Plays a policy's likeliest moves, and gives the game up after a few: who does not wins every game against it."""

    def __init__(self, policy: MovePolicy, name: str) -> None:
        self.name = name
        self._player = BestMovePlayer(policy, name)

    def choose(self, boards: Sequence[chess.Board], games: Sequence[int]) -> list[Reply]:
        moves = self._player.choose(boards, games)
        return [
            Reply(move=move if len(board.move_stack) < 4 else None, counts=ReplyCounts()) for move, board in zip(moves, boards, strict=True)
        ]


def make_strong(monkeypatch: pytest.MonkeyPatch, *strong: str) -> set[tuple[str, str]]:
    """Let the players of these names win all their games against others, whatever the weights are.

    Return the names of all players, each with the hash of its weights.
    """
    made = set[tuple[str, str]]()

    def player(policy: NetworkPolicy, name: str) -> BestMovePlayer | Quitter:
        made.add((name, weights_hash(policy)))
        return (BestMovePlayer if name in strong else Quitter)(policy, name)

    monkeypatch.setattr(network_policies, "BestMovePlayer", player)
    return made


def settings(inputs: Mapping[str, Path], changes: Mapping[str, Any] | None = None) -> Settings:
    text = f'{_MAIN}evaluation.opening_book = "{inputs["openings"]}"'
    return settings_over(tiny_settings(text).model_dump(mode="json"), changes or {})


def dataset_boards() -> list[chess.Board]:
    return some_boards(NUM_BOARDS, max_plies=60)


def write_checkpoint(finetuned: Path, step: int, policy: NetworkPolicy | None = None) -> None:
    state = TrainingState(step=step, control={}, facts={}, tensors={})
    save_checkpoint(finetuned / CHECKPOINTS, policy or new_policy(TINY, seed=step, device=CPU), state)


def write_finetuned(folder: Path, steps: Sequence[int] = tuple(REGRETS), regrets: Mapping[int, float] = REGRETS) -> Path:
    (folder / CHECKPOINTS).mkdir(parents=True)
    for step in steps:
        write_checkpoint(folder, step)
    rows = [{"step": step, "heldout/regret_best": regret, "heldout/regret_best_stderr": 0.01} for step, regret in regrets.items()]
    (folder / HISTORY).write_text("".join(f"{json.dumps(row)}\n" for row in ({"step": 1, "grpo/entropy": 2.0}, *rows)))
    return folder


def step(
    module: ModuleType,
    folder: Path,
    given: Settings,
    inputs: Mapping[str, Path],
    *,
    engine: str = sys.executable,
    **more: Any,
) -> Path:
    """Return the output of a step; without an engine, of one that asks none."""
    folder.mkdir(parents=True)
    taken = {name: inputs[name] for name in module.STEP.inputs if name in inputs}
    of_run = {name: inputs[name] for name in module.STEP.of_run if name in inputs}
    work = work_in(
        folder / "output", declared(given, module.STEP.reads_for(given.policy.kind)), stockfish=engine, inputs=taken, of_run=of_run, **more
    )
    module.body(work)
    work.write_history()
    return folder / "output"


def write_inputs(root: Path, engine: str) -> dict[str, Path]:
    """Write boards, a fresh policy, three checkpoints, a ladder, and a book of the boards and of enough others for any selection here."""
    (root / "boards").mkdir()
    write_boards(root / "boards", dataset_boards())
    openings = [*dataset_boards(), *some_boards(400, seed=1, max_plies=24)]
    (root / "book.epd").write_text("".join(f"{board.epd()}\n" for board in openings))
    return {
        "openings": root / "book.epd",
        "join_boards": root / "boards",
        "pretrain": saved_policy(root / "pretrained", 0),
        "finetune": write_finetuned(root / "finetuned"),
        "calibrate": step(calibrate, root / "calibrated", tiny_settings(), {}, engine=engine),
    }


@dataclass(frozen=True)
class Selection:
    screened: Path
    parts: list[Path]
    selected: Path

    @property
    def report(self) -> Any:
        return read_json(self.selected / REPORT)

    def hashes(self) -> dict[str, str]:
        """Return the hashes of the output's files, but those that hold times."""
        return {name: digest for name, digest in file_hashes(self.selected).items() if not name.startswith(ASIDE)}

    def games(self) -> dict[str, list[chess.pgn.Game]]:
        """Return the games of `games.pgn` by event, as python-chess reads them."""
        games: dict[str, list[chess.pgn.Game]] = {}
        for game in games_in((self.selected / PGN).read_text()):
            games.setdefault(game.headers["Event"], []).append(game)
        return games


@dataclass
class Selections:
    root: Path
    inputs: Mapping[str, Path]
    engine: str

    def run(self, changes: Mapping[str, Any] | None = None, *, num_parts: int = 1, **inputs: Path) -> Selection:
        place, given = self.root / f"selection-{len(list(self.root.iterdir()))}", settings(self.inputs, changes)
        taken = {**self.inputs, **inputs}
        taken["screen"] = step(screen, place / "screen", given, taken, engine=self.engine)
        parts = [
            step(confirm, place / f"confirm-{number}", given, taken, engine=self.engine, part=Part(number=number, count=num_parts))
            for number in range(num_parts)
        ]
        selected = step(select, place / "select", given, taken, engine=self.engine, parts=parts)
        return Selection(taken["screen"], parts, selected)


def openings_of(games: Sequence[chess.pgn.Game]) -> list[str]:
    return [position_key(game.board()) for game in games]
