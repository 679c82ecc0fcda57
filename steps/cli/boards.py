"""The commands `chess-grpo boards build`, `inspect` and `export`."""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from grpo.base.files import atomic_folder, write_manifest
from grpo.engine.identity import EngineIdentity, identify
from grpo.reading.games import Rejection, SourceError
from grpo.reading.rejections import sort_rejections, write_rejection
from grpo.settings.tree import ConfigError, Settings
from steps.bodies.build_boards import build_units
from steps.bodies.check_boards import check_dataset
from steps.bodies.join_boards import join_units, nothing_usable
from steps.cli.inspect_files import dataset_text, files_text, inspect_files
from steps.cli.parser import add_settings, given_settings
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say, wrapped
from steps.step_io.names import BOARDS
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work

CHECKS: Final = "checks"
"""Subfolder of a dataset with the report of its checks."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `boards` with its two commands."""
    boards = commands.add_parser("boards").add_subparsers(required=True, metavar="COMMAND")
    build = boards.add_parser(
        "build",
        help="build a dataset: positions with engine values of all legal moves, checked",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=wrapped(
            "Build a dataset as the flow's first steps do, and check it: positions, balanced over opening, middlegame, endgame, with the"
            " engine's value of every legal move. The boards come from the engine's own games, or from files (docs/boards.md)."
        ),
        epilog="examples:\n  chess-grpo boards build boards --config smoke\n  chess-grpo boards build boards"
        " --set boards.source='\"files\"' --set boards.files='[\"games.pgn\"]'",
    )
    build.add_argument("out", type=Path, metavar="OUT", help="the folder to create; it must not exist")
    add_settings(build)
    build.set_defaults(run=_build)
    inspect = boards.add_parser(
        "inspect",
        help="summarise a dataset, or files of games and positions",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=wrapped("Summarise a dataset, or what files of games and positions hold and which of it cannot be used."),
        epilog="examples:\n  chess-grpo boards inspect boards\n  chess-grpo boards inspect games.pgn.zst --rejected rejected.jsonl",
    )
    inspect.add_argument(
        "what", nargs="+", metavar="WHAT", help="a dataset's folder; or files, folders, globs or s3:// addresses of games and positions"
    )
    inspect.add_argument("--examples", type=int, default=3, metavar="N", help="boards to print (default 3)")
    inspect.add_argument(
        "--rejected", type=Path, metavar="FILE", help="write rejected games to this file: one line of JSON each, with file and byte"
    )
    add_settings(inspect)
    inspect.set_defaults(run=_inspect)


def _build(given: argparse.Namespace) -> int:
    settings, machine, out = given_settings(given), Machine.here(), given.out.resolve()
    if out.exists():
        raise ConfigError(f"{out} already exists; name another folder, or remove it")
    engine = identify(machine.stockfish)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.parts.", dir=_created(out.parent)) as parts, atomic_folder(out) as folder:
        join_units(settings, _build_all(settings, engine, machine, Path(parts)), Work(folder, ()))
        (folder / CHECKS).mkdir()
        check_dataset(settings, folder, Work(folder / CHECKS, ()))
        write_manifest(folder, {"settings": settings.model_dump(mode="json"), "engine": str(engine)})
    say(dataset_text(out, num_examples=0))
    print(f"all checks passed; written: {out / BOARDS}")
    return 0


def _created(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _build_all(settings: Settings, engine: EngineIdentity, machine: Machine, parent: Path) -> list[Path]:
    """Build all units, spread over `boards.num_tasks` processes, and return the folders they are in."""
    num_tasks = settings.boards.num_tasks
    folders = [_created(parent / f"task-{task}") for task in range(num_tasks)]
    # Spawn, not fork: children must not inherit engines and threads of this process.
    with ProcessPoolExecutor(num_tasks, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [
            pool.submit(_build_part, settings, range(task, settings.boards.num_units, num_tasks), engine, machine, folder)
            for task, folder in enumerate(folders)
        ]
        for task in tasks:
            task.result()
    return folders


def _build_part(settings: Settings, units: Sequence[int], engine: EngineIdentity, machine: Machine, folder: Path) -> None:
    which = f"unit {units[0]}" if len(units) == 1 else f"units {', '.join(map(str, units))}"
    work = Work(folder, (), terminal=TerminalSink(which, (), say))
    build_units(settings, units, engine, machine.stockfish, work, cache_folder=machine.value_cache)


def _inspect(given: argparse.Namespace) -> int:
    folders = [Path(name) for name in given.what if (Path(name) / BOARDS).is_file()]
    if folders:
        if len(given.what) > 1:
            raise ConfigError("inspect takes one dataset at a time; name one folder, or files of games and positions")
        say(dataset_text(folders[0], num_examples=given.examples))
        return 0
    settings = given_settings(
        argparse.Namespace(config=given.config, set=[*given.set, 'boards.source = "files"', f"boards.files = {json.dumps(given.what)}"])
    )
    with ExitStack() as stack:
        rejected = None if given.rejected is None else stack.enter_context(given.rejected.open("w", encoding="utf-8"))

        def on_rejection(rejection: Rejection) -> None:
            if rejected is not None:
                write_rejection(rejected, rejection)

        report = inspect_files(settings.boards, on_rejection=on_rejection, say=lambda text: say(text, sys.stderr))
    if given.rejected is not None:
        sort_rejections(given.rejected)
    say(files_text(report))
    if not report.source.num_games:
        raise SourceError(nothing_usable(", ".join(given.what), report.source))
    return 0
