"""The entry point of `chess-grpo`. Imports only the module of the given command, because a UCI engine must answer its GUI at once."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from grpo.base.errors import PlainError
from steps.cli.command_table import CODES, COMMAND_GROUPS, COMMANDS
from steps.cli.parser import TeachingParser, teach
from steps.runtime.terminal_lines import say

_ABOUT = (
    "Tools of the chess GRPO pipeline: check this machine, inspect runs, play with policies, run single steps. The whole pipeline is"
    " `make run`, or `python flows/chess_grpo.py run`."
)
_EXAMPLES = ("chess-grpo doctor --config smoke", "chess-grpo runs", "chess-grpo show last", "chess-grpo match champion stockfish:nodes=1")
_BROKEN_PIPE = 141
"""A shell's exit code for a program that was killed by SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 an error that the message explains, 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] in (["--version"], ["version"]):
        print(_version())
        return 0
    parser = _parser(words[0] if words else "")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    given = parser.parse_args(words)
    try:
        return int(given.run(given))
    except PlainError as error:
        say(f"chess-grpo: {error}", sys.stderr)
        return 1
    except BrokenPipeError:  # As in `chess-grpo runs | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _version() -> str:
    """Return the project's version, and the commit of a checkout."""
    import platform

    from steps.store.versions import describe_code

    code = describe_code()
    dirty = ", with uncommitted changes" if code["is_dirty"] else ""
    commit = "" if code["commit"] == "unknown" else f" (commit {code['commit'][:12]}{dirty})"
    return f"chess-grpo {version('chess-grpo')}{commit}, Python {platform.python_version()}"


def _parser(name: str) -> TeachingParser:
    """Return the parser of one command; for an unknown name, a parser that only lists all commands."""
    parser = TeachingParser(prog="chess-grpo", usage="chess-grpo COMMAND ...", add_help=False)
    parser.add_argument("-h", "--help", action="help", help="this list; after a COMMAND, its help")
    parser.add_argument("--version", action="store_true", help="version and commit of this installation")
    if (command := COMMANDS.get(name)) is None:
        commands = parser.add_subparsers(required=True, metavar="COMMAND", help="one of those below", prog="chess-grpo")
        for each in COMMANDS:
            commands.add_parser(each)
        teach(parser, about=_ABOUT, lists=_lists(), examples=_EXAMPLES, codes=CODES, page="README.md, docs/commands.md")
        return parser
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog="chess-grpo")
    import_module(command.module).add_commands(commands)
    added = commands.choices[name]
    teach(
        added,
        about=added.description or f"{command.goal[:1].upper()}{command.goal[1:]}.",
        examples=command.examples,
        codes=command.codes,
        page=command.page,
    )
    return parser


def _lists() -> dict[str, list[tuple[str, str]]]:
    """Return group -> its commands with their goals."""
    lists: dict[str, list[tuple[str, str]]] = {group: [] for group in COMMAND_GROUPS}
    for name, command in COMMANDS.items():
        lists[command.group].append((name, command.goal))
    return lists


if __name__ == "__main__":
    sys.exit(main())
