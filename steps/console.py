"""The command `chess-grpo`. A command's module is imported when it is the one that is given: an engine must answer its GUI at once."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from grpo.errors import PlainError

COMMANDS: Final[Mapping[str, str]] = {
    "boards": "steps.boards_command",
    "finetune": "steps.finetune_command",
    "match": "steps.match_command",
    "plan-games": "steps.plan_command",
    "solve": "steps.solve_command",
    "uci": "steps.uci_command",
    "export": "steps.export_command",
    "track": "steps.track_command",
    "diagnose": "steps.diagnose_command",
}
"""Name -> module with `add_commands`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code: 0 done, 1 an error that the message explains, 2 a wrong usage."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser(words[0] if words else "").parse_args(words)
    try:
        return int(given.run(given))
    except PlainError as error:
        print(f"chess-grpo: {error}", file=sys.stderr)
        return 1


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of one command, or of all when it is none of them."""
    parser = argparse.ArgumentParser(prog="chess-grpo", description="Parts of the chess GRPO pipeline by themselves.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in [COMMANDS[command]] if command in COMMANDS else COMMANDS.values():
        import_module(module).add_commands(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
