"""The command `chess-grpo finetune`: GRPO alone."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo.base.files import atomic_folder, json_text, read_json, remove_folder, remove_leftovers, replace_file, sha256_file, write_manifest
from grpo.engine.identity import identify
from grpo.settings.roles import settings_read_by
from grpo.settings.tree import ConfigError
from steps.cli.parser import add_settings, given_settings
from steps.kinds.lookup import kind_of
from steps.runs.find_policy import find_policy
from steps.runs.names import POLICY_NAMES
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say
from steps.step_io.names import BOARDS
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work
from steps.store.file_lock import file_lock


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `finetune`."""
    finetune = commands.add_parser(
        "finetune",
        description="Run GRPO alone. The same command resumes an interrupted training.",
    )
    finetune.add_argument("boards", type=Path, metavar="BOARDS", help="folder of a dataset, from `boards build` or the step join_boards")
    finetune.add_argument("pretrained", metavar="PRETRAINED", help=f"the initial policy, which is also the KL reference: {POLICY_NAMES}")
    finetune.add_argument("out", type=Path, metavar="OUT", help="the folder to create, with checkpoints and history; it must not exist")
    add_settings(finetune)
    finetune.set_defaults(run=_finetune)


def _finetune(given: argparse.Namespace) -> int:
    import torch

    from steps.bodies.live_diagnosis import LiveDiagnosis
    from steps.runtime.device import device_facts, torch_device

    settings, machine, out = given_settings(given), Machine.here(), given.out.resolve()
    progress = out.parent / f".{out.name}.in_progress"
    if out.exists():
        raise ConfigError(f"{out} already exists; name another folder, or remove it")
    if not (given.boards / BOARDS).is_file():
        raise ConfigError(f"{given.boards} is not a dataset: it has no {BOARDS}; give the folder that `chess-grpo boards build` made")
    pretrained = find_policy(given.pretrained, machine)
    if pretrained.kind != settings.policy.kind:
        raise ConfigError(
            f"{given.pretrained} has policy.kind = {pretrained.kind!r}, but the settings have {settings.policy.kind!r}: these must be equal"
        )
    kind = kind_of(settings)
    facts = {
        "settings": settings_read_by("finetune", settings),
        "boards": sha256_file(given.boards / BOARDS),
        "pretrained": pretrained.weights_hash,
        "engine": str(identify(machine.stockfish)),
        "machine": device_facts(machine),
    }
    torch.set_num_threads(machine.num_threads)
    out.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(progress.with_suffix(".lock"), what=f"{out}"):
        progress.mkdir(parents=True, exist_ok=True)
        _refuse_other_inputs(progress, facts)
        remove_leftovers(progress)
        remove_leftovers(out.parent, f".{out.name}.????????")  # A partial output of a killed process.
        with atomic_folder(out) as folder:
            work = Work(
                folder,
                (),
                terminal=TerminalSink("finetune", ("heldout/regret_best", "heldout/entropy", "language/reward_mean"), say),
                progress_folder=progress,
                watcher=LiveDiagnosis(settings.model_dump(mode="json")),
            )
            kind.finetune(
                settings,
                boards=given.boards,
                pretrained=pretrained.folder,
                checkpoint=None,
                facts=facts,
                machine=machine,
                num_engines=machine.num_threads,
                device=torch_device(machine),
                work=work,
                on_assessed=None,
            )
            work.write_history()
            write_manifest(folder, facts)
    remove_folder(progress)
    print(f"written: {out}")
    return 0


def _refuse_other_inputs(progress: Path, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError when the interrupted training in this folder has other settings, boards, policy or engine."""
    begun = progress / "begun.json"
    if not begun.exists():
        replace_file(begun, json_text(facts).encode())
    then = read_json(begun)
    differences = [name for name in facts if then.get(name) != facts[name]]
    if differences:
        raise ConfigError(f"{progress} was started with other {', '.join(differences)}; remove it to start over, or give the same again")
