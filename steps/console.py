"""The command `chess-grpo`."""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from grpo.checkpoints import WEIGHTS
from grpo.config import DEFAULT_PRESET, ConfigError, Settings, read_settings
from grpo.content import atomic_folder, json_text, read_json, remove_folder, remove_leftovers, replace_file, sha256_file, write_manifest
from grpo.engine import EngineIdentity, identify
from grpo.errors import PlainError
from grpo.games import Rejection
from steps import plan_command, slices, solve_command
from steps.boards import BOARDS, build_units, join_units, write_rejection
from steps.checking import check_dataset
from steps.inspecting import dataset_text, files_text, inspect_files
from steps.machine import Machine
from steps.store import held
from steps.work import TerminalSink, Work

CHECKS: Final = "checks"
"""Folder of a dataset that `boards build` made, with the report of its checks."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code: 0 done, 1 an error that the message explains, 2 a wrong usage."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except PlainError as error:
        print(f"chess-grpo: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chess-grpo", description="Parts of the chess GRPO pipeline by themselves.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    boards = commands.add_parser("boards", help="make a dataset of boards, or look at one").add_subparsers(required=True, metavar="COMMAND")
    build = boards.add_parser("build", help="make a dataset: positions with the value of every legal move, checked")
    build.add_argument("out", type=Path, help="the folder to make; it must not be there")
    _add_settings(build)
    build.set_defaults(run=_build)
    inspect = boards.add_parser("inspect", help="what is in a dataset, or in files of games and positions")
    inspect.add_argument("what", nargs="+", help="a dataset's folder; or files, folders, globs or s3:// addresses of games and positions")
    inspect.add_argument("--examples", type=int, default=3, metavar="N", help="boards to draw (default 3)")
    inspect.add_argument(
        "--rejected", type=Path, metavar="FILE", help="write each rejected game here, a line of JSON each, with file and byte"
    )
    _add_settings(inspect)
    inspect.set_defaults(run=_inspect)
    for command in (plan_command, solve_command):
        command.add_commands(commands)
    finetune = commands.add_parser(
        "finetune",
        help="GRPO by itself, on a dataset and a policy",
        description="GRPO by itself. In several processes: torchrun --nproc-per-node 2 -m steps.console finetune ... The same command again"
        " goes on after a kill.",
    )
    finetune.add_argument("boards", type=Path, help="a dataset's folder, of `boards build` or of the step join_boards")
    finetune.add_argument("pretrained", type=Path, help="the policy to begin with, and the KL terms' reference: a folder with its weights")
    finetune.add_argument("out", type=Path, help="the folder to make, with checkpoints and history; it must not be there")
    _add_settings(finetune)
    finetune.set_defaults(run=_finetune)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", default=DEFAULT_PRESET, metavar="NAME", help="a preset, or a TOML file that names what differs from one"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help='such as boards.num_train=3000; values are TOML: "text"'
    )


def _settings(given: argparse.Namespace) -> Settings:
    return read_settings("\n".join([f"preset = {json.dumps(given.config)}", *given.set]))


def _build(given: argparse.Namespace) -> int:
    settings, machine, out = _settings(given), Machine.here(), given.out.resolve()
    if out.exists():
        raise ConfigError(f"{out} is there already; name a folder that is not, or remove it")
    engine = identify(machine.stockfish)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.parts.", dir=_made(out.parent)) as parts, atomic_folder(out) as folder:
        join_units(settings, _built(settings, engine, machine, Path(parts)), Work(folder, ()))
        (folder / CHECKS).mkdir()
        check_dataset(settings, folder, Work(folder / CHECKS, ()))
        write_manifest(folder, {"settings": settings.model_dump(mode="json"), "engine": str(engine)})
    print(dataset_text(out, num_examples=0))
    print(f"all checks are met; written: {out / BOARDS}")
    return 0


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _built(settings: Settings, engine: EngineIdentity, machine: Machine, parent: Path) -> list[Path]:
    """Build all units, spread over `boards.num_tasks` processes, and return the folders they are in."""
    num_tasks = settings.boards.num_tasks
    folders = [_made(parent / f"task-{task}") for task in range(num_tasks)]
    # Not by fork: engines and threads of this process are none of the children's business.
    with ProcessPoolExecutor(num_tasks, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [
            pool.submit(_build_part, settings, range(task, settings.boards.num_units, num_tasks), engine, machine, folder)
            for task, folder in enumerate(folders)
        ]
        for task in tasks:
            task.result()
    return folders


def _build_part(settings: Settings, units: Sequence[int], engine: EngineIdentity, machine: Machine, folder: Path) -> None:
    sink = TerminalSink(f"units {', '.join(map(str, units))}", ("cache/hits", "cache/misses"), lambda text: print(text, flush=True))
    build_units(settings, units, engine, machine.stockfish, Work(folder, (sink,)), cache_folder=machine.value_cache)


def _finetune(given: argparse.Namespace) -> int:
    import torch

    from grpo.processes import joined_processes
    from steps.device import device_facts, torch_device
    from steps.finetuning import finetune_policy

    settings, machine, out = _settings(given), Machine.here(), given.out.resolve()
    progress = out.parent / f".{out.name}.in_progress"
    if out.exists():
        raise ConfigError(f"{out} is there already; name a folder that is not, or remove it")
    engine = identify(machine.stockfish)
    facts = {
        "settings": slices.grpo(settings),
        "boards": sha256_file(given.boards / BOARDS),
        "pretrained": sha256_file(given.pretrained / WEIGHTS),
        "engine": str(engine),
        "machine": f"{device_facts(machine)}, {os.environ.get('WORLD_SIZE', '1')} processes",
    }
    device = torch_device(machine)
    torch.set_num_threads(max(1, machine.num_threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    _made(out.parent)
    with joined_processes(device) as processes, ExitStack() as stack:
        if processes.is_first:
            stack.enter_context(held(progress.with_suffix(".lock"), what=f"{out}"))
            _refuse_other_beginning(_made(progress), facts)
            remove_leftovers(progress)
            remove_leftovers(out.parent, f".{out.name}.????????")  # Half an output, of a process that was killed.
            folder = stack.enter_context(atomic_folder(out))
            terminal = TerminalSink("finetune", ("heldout/regret_best", "heldout/entropy"), lambda text: print(text, flush=True))
        else:
            folder, terminal = Path(stack.enter_context(tempfile.TemporaryDirectory())), None
        processes.wait()
        work = Work(folder, (), terminal=terminal, progress_folder=progress)
        finetune_policy(
            settings,
            boards=given.boards,
            pretrained=given.pretrained,
            checkpoint=None,
            facts=facts,
            engine=engine,
            engine_path=machine.stockfish,
            num_processes=max(1, machine.num_threads // processes.size),
            cache_folder=machine.value_cache,
            device=device,
            work=work,
            processes=processes,
        )
        if processes.is_first:
            work.write_history()
            write_manifest(folder, facts)
    if processes.is_first:
        remove_folder(progress)
        print(f"written: {out}")
    return 0


def _refuse_other_beginning(progress: Path, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError when what was begun here was begun with other settings, boards, policy or engine."""
    begun = progress / "begun.json"
    if not begun.exists():
        replace_file(begun, json_text(facts).encode())
    then = read_json(begun)
    differences = [name for name in facts if then.get(name) != facts[name]]
    if differences:
        raise ConfigError(f"{progress} was begun with other {', '.join(differences)}; remove it to begin anew, or give those again")


def _inspect(given: argparse.Namespace) -> int:
    folders = [Path(name) for name in given.what if (Path(name) / BOARDS).is_file()]
    if folders:
        if len(given.what) > 1:
            raise ConfigError("inspect looks at one dataset at a time; name one folder, or files of games and positions")
        print(dataset_text(folders[0], num_examples=given.examples))
        return 0
    settings = _settings(
        argparse.Namespace(config=given.config, set=[*given.set, 'boards.source = "files"', f"boards.files = {json.dumps(given.what)}"])
    )
    with ExitStack() as stack:
        rejected = None if given.rejected is None else stack.enter_context(given.rejected.open("w", encoding="utf-8"))

        def on_rejection(rejection: Rejection) -> None:
            if rejected is not None:
                write_rejection(rejected, rejection)

        report = inspect_files(settings.boards, on_rejection=on_rejection, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(files_text(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
