"""Tiny inputs of `finetune` for both kinds of policies, and the step in a store of its own, as in a run."""

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import small_language
from doubles import TINY, saved_policy
from made_runs import machine_of

from grpo.dataset.table import GAME_SCHEMA
from grpo.settings.kinds import LANGUAGE, NETWORK
from grpo.settings.names import declared
from grpo.settings.tree import Settings
from steps.finetune import STEP
from steps.names import BOARDS, GAMES
from steps.run.step import OfRun
from steps.run.store import Store
from steps.run.work import Listener, Work

KINDS = (NETWORK, LANGUAGE)
VERSION = "v1"
_NUM_BOARDS = (32, 16, 12)
_GRPO: dict[str, dict[str, Any]] = {
    NETWORK: {"num_steps": 8, "states_per_step": 8, "num_minibatches": 2, "learning_rate": 5e-3},
    LANGUAGE: {"num_steps": 3, "states_per_step": 3, "num_minibatches": 3, "learning_rate": 1e-4},
}


def settings(kind: str = NETWORK, **grpo: Any) -> Settings:
    """Return settings of a tiny run without own games, with changes of `[grpo]`."""
    common = {"group_size": 4, "steps_per_checkpoint": 2, "self_play_fraction": 0.0}
    plain: dict[str, Any] = {"grpo": {**common, **_GRPO[kind], **grpo}, "policy": TINY.model_dump(mode="json")}
    if kind == LANGUAGE:
        language = {**small_language.CONFIG.model_dump(mode="json"), "num_heldout_boards": 3}
        plain |= {"policy": {"kind": LANGUAGE}, "language": language}
    return Settings.model_validate(plain)


def prepare(folder: Path) -> None:
    (folder / "boards").mkdir(parents=True)
    pq.write_table(small_language.boards_table(*_NUM_BOARDS), folder / "boards" / BOARDS)
    pq.write_table(GAME_SCHEMA.empty_table(), folder / "boards" / GAMES)
    saved_policy(folder / NETWORK, 0)
    (folder / LANGUAGE).symlink_to(small_language.pretrained_folder())


def progress_of(home: Path) -> Path:
    return home / "progress" / "finetune" / VERSION


def finetune(
    home: Path,
    prepared: Path,
    given: Settings,
    *,
    listeners: tuple[Listener, ...] = (),
    say: Callable[[str], None] = print,
    checkpoint: Path | None = None,
) -> Path:
    kind, store = given.policy.kind, Store(home, home)
    with store.making("finetune", VERSION) as making:
        if making.output is None:
            with making.filling({}) as folder:
                work = Work(
                    folder=folder,
                    settings=declared(given, STEP.reads_for(kind)),
                    machine=replace(machine_of(home), stockfish=sys.executable),  # The file exists, but no step starts it as an engine.
                    inputs={"join_boards": prepared / "boards", "pretrain": prepared / kind},
                    of_run={} if checkpoint is None else {OfRun.CHECKPOINT: checkpoint},
                    facts={"settings": STEP.settings(given)},
                    progress_folder=making.progress,
                    listeners=listeners,
                    say=say,
                    saved=making.save,
                )
                import_module(STEP.variant(kind).module).body(work)
                work.write_history()
    return store.folder("finetune", VERSION)
