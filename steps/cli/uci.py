"""Command `chess-grpo uci`. Imports little, because the chess GUI waits for its engine."""

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from grpo.base.errors import PlainError
from grpo.policy.files import policy_kind
from grpo.settings.kinds import KINDS
from grpo.uci.options import UciOptions
from grpo.uci.server import UciEngine, serve
from steps.cli.options import device_option, temperature_option
from steps.run.machine import Machine
from steps.track.find import FoundPolicy, find_policy

if TYPE_CHECKING:
    from grpo.uci.search import MoveFinder

_STDOUT, _STDERR = 1, 2


@click.command()
@click.option("--model", default="champion", metavar="NAME", help="champion (default), peak, a run's id or a folder.")
@temperature_option
@device_option
def command(model: str, temperature: float, device: str) -> int:
    """Run a policy as a UCI engine for a chess GUI (docs/commands.md). The UCI option Temperature overrides --temperature."""
    write = _protocol_writer()
    try:
        machine = replace(Machine.here(), device=device, num_threads=1)
        policy = find_policy(model, machine)
        engine = UciEngine(
            name=f"chess-grpo {policy.run} {policy.weights_hash[:12]}",
            options=UciOptions(temperature=temperature, has_lines=KINDS[policy_kind(policy.folder)].has_probabilities),
            load=lambda: _load(policy, machine),
            seed=secrets.randbits(31),
            write=write,
        )
        serve(engine, sys.stdin.buffer)
    except PlainError as error:
        write(f"info string error: {' '.join(str(error).split())}")  # For the GUI; `main` prints the message on stderr.
        raise
    except BrokenPipeError:
        pass  # The GUI is gone.
    return 0


def _load(policy: FoundPolicy, machine: Machine) -> "MoveFinder":
    from steps.common.policies.open import open_policy
    from steps.run.device import torch_device

    return open_policy(policy.folder, torch_device(machine)).move_finder()


def _protocol_writer() -> Callable[[str], None]:
    """Return a function that writes lines to standard output. All other output goes to standard error, also of native code."""
    protocol = os.dup(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
    except OSError:  # The GUI closed standard error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    sys.stdout = sys.stderr

    def write(line: str) -> None:
        remaining = f"{line}\n".encode("ascii", "replace")
        while remaining:
            remaining = remaining[os.write(protocol, remaining) :]

    return write
