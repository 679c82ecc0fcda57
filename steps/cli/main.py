"""The entry point of `chess-grpo`. Imports only the module of the given command, because a UCI engine must answer its GUI at once."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Final

from grpo.base.errors import PlainError

_BROKEN_PIPE: Final = 141
"""A shell's exit code for a program that was killed by SIGPIPE."""
COMMANDS: Final[Mapping[str, str]] = {
    "doctor": "check this machine and the settings before a run, with a remedy for each problem",
    "runs": "list the runs, newest first: settings, status and results",
    "show": "show one run: settings, steps, results with confidence intervals, findings and locations",
    "card": "open a step's card: the report of a run, the curves of its training, the games that decided",
    "diagnose": "diagnose what is wrong with a run, and how to fix it",
    "compare": "compare two runs, with conclusions",
    "sweep": "run the pipeline over seeds and combinations of settings, with means over seeds",
    "ui": "open this home's tracking store in the MLflow UI",
    "track": "log to MLflow what runs could not log during an outage",
    "play": "play against a policy yourself, in the terminal or by clicks on a local page",
    "uci": "run a policy as a UCI engine",
    "match": "play paired games between two players, with confidence intervals",
    "solve": "how many puzzles (Lichess CSV) or problems (EPD: bm, am) a policy solves",
    "export": "export a model for other programs: safetensors, JSON and a model card",
}
"""Command, which is also the name of its module with `add_commands` -> what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 an error that the message explains, 2 wrong usage."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["--version"]:
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
        print(f"chess-grpo: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # As in `chess-grpo runs | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


def _version() -> str:
    """Return the project's version, and the commit of a checkout."""
    import platform

    from steps.run.versions import describe_code

    code = describe_code()
    dirty = ", with uncommitted changes" if code["is_dirty"] else ""
    commit = "" if code["commit"] == "unknown" else f" (commit {code['commit'][:12]}{dirty})"
    return f"chess-grpo {version('chess-grpo')}{commit}, Python {platform.python_version()}"


def _parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command; for an unknown name, a parser that only lists all commands."""
    parser = argparse.ArgumentParser(
        prog="chess-grpo", description="Tools of the chess GRPO pipeline. The whole pipeline is `python flows/chess_grpo.py run`."
    )
    parser.add_argument("--version", action="store_true", help="version and commit of this installation")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    if name in COMMANDS:
        import_module(f"steps.cli.{name}").add_commands(commands)
    else:
        for each, goal in COMMANDS.items():
            commands.add_parser(each, help=goal)
    return parser


if __name__ == "__main__":
    sys.exit(main())
