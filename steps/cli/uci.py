"""The command `chess-grpo uci`: a policy as a UCI engine. It imports little, because chess GUIs wait while it starts."""

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from grpo.base.errors import PlainError
from grpo.uci.options import BEST_MOVE, OptionError, UciOptions
from grpo.uci.server import UciEngine, serve
from steps.cli.parser import finite_number
from steps.policies.kinds import KINDS
from steps.run.machine import Machine
from steps.run.terminal_lines import say
from steps.track.find import POLICY_NAMES, FoundPolicy, find_policy

if TYPE_CHECKING:
    from grpo.uci.search import MoveFinder

_STDOUT: Final = 1
_STDERR: Final = 2
_INTERRUPTED_EXIT: Final = 130


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `uci` to the parser of `chess-grpo`."""
    _describe(
        commands.add_parser(
            "uci",
            description="Run a policy as a UCI engine; a chess GUI starts this command (docs/playing.md).",
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine without importing the other commands of `chess-grpo`, which takes seconds."""
    parser = argparse.ArgumentParser(prog="chess-grpo uci")
    _describe(parser)
    try:
        return run_engine(parser.parse_args(arguments))
    except PlainError as error:
        say(f"chess-grpo: {error}", sys.stderr)
        return 1


def run_engine(given: argparse.Namespace) -> int:
    """Serve UCI until `quit` and return the exit code; only the protocol goes to standard output."""
    machine = replace(Machine.here(), device=given.device, num_threads=1)
    write = _protocol_writer()
    model = find_policy(given.model, machine)
    options = UciOptions(temperature=given.temperature, has_lines=KINDS[model.kind].has_lines)
    engine = UciEngine(
        name=f"chess-grpo {model.run} {model.weights_hash[:12]}",
        options=options,
        load=lambda: _load(model, machine),
        random_seed=secrets.randbits(31),
        write=write,
    )
    try:
        serve(engine, sys.stdin.buffer)
    except PlainError as error:
        write(f"info string error: {' '.join(str(error).split())}")  # A GUI shows this line; standard error has the message too.
        raise
    except BrokenPipeError:
        pass  # The GUI has ended.
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT
    return 0


def _describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="champion", metavar="NAME", help=f"{POLICY_NAMES} (default: champion)")
    parser.add_argument(
        "--temperature",
        type=temperature_option,
        default=BEST_MOVE,
        metavar="T",
        help="0 (default): the likeliest move; otherwise moves are sampled at T. The UCI option of this name overrides it",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default: one board at a time), cuda or auto")
    parser.set_defaults(run=run_engine)


def temperature_option(text: str) -> float:
    """Parse a temperature: `BEST_MOVE` or one at which moves are sampled; raises ArgumentTypeError."""
    try:
        return UciOptions(temperature=finite_number(text)).temperature
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _load(model: FoundPolicy, machine: Machine) -> "MoveFinder":
    from steps.policies.open import open_policy
    from steps.run.device import torch_device

    return open_policy(model.folder, torch_device(machine)).move_finder()


def _protocol_writer() -> Callable[[str], None]:
    """Return a function that writes lines to standard output, which is reserved for it from now on.

    Output of libraries, even of native code, goes to standard error.
    """
    protocol = os.dup(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
    except OSError:  # The GUI has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    sys.stdout = sys.stderr

    def write(line: str) -> None:
        rest = f"{line}\n".encode("ascii", "replace")
        while rest:
            rest = rest[os.write(protocol, rest) :]

    return write


if __name__ == "__main__":
    sys.exit(main())
