"""The entry point of `chess-grpo`. Imports only the called command's module, because a chess GUI waits for its engine."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click

from grpo.base.errors import PlainError
from grpo.base.suggestions import did_you_mean
from steps.run.commands import FLOW_FILE

_GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Before a run": {"doctor": "check machine and settings"},
    "Runs": {
        "runs": "list runs, newest first",
        "show": "show a run's steps, results and findings",
        "card": "open a step's report, curves or games",
        "compare": "compare two runs' results",
        "diagnose": "find what is wrong with a training",
        "sweep": "run the pipeline over seeds and settings",
        "ui": "open the MLflow UI",
        "track": "log what MLflow missed in an outage",
    },
    "Policies": {
        "play": "play against a policy in the browser",
        "uci": "run a policy as a chess GUI's engine",
        "match": "play paired games between two players",
        "solve": "measure a policy on puzzles",
        "export": "write a policy's files and model card",
    },
}
"""Group -> command -> purpose. Module COMMAND has the function `command`."""
COMMANDS: Final = {name: goal for group in _GROUPS.values() for name, goal in group.items()}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # The signature is click's.
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name.startswith("-"):
            return None  # Click reports the unknown option.
        if cmd_name in ("run", "resume"):
            raise click.UsageError(f"the pipeline is another program: `python {FLOW_FILE} {cmd_name}`, or `make run CONFIG=smoke`", ctx)
        if cmd_name not in COMMANDS:
            raise click.UsageError(f"there is no command {cmd_name!r}; {did_you_mean(cmd_name, COMMANDS)}", ctx)
        command: click.Command = import_module(f"steps.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="chess-grpo")
def commands() -> None:
    """Tools of the chess GRPO pipeline. `python flows/chess_grpo.py run` runs the pipeline."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 0 done, 1 error with a message, 2 wrong usage, 130 Ctrl-C, or a command's own code."""
    try:
        return int(commands.main(arguments, prog_name="chess-grpo", standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        path = "chess-grpo" if error.ctx is None else error.ctx.command_path
        print(f"{path}: {error.format_message()} (see `{path} --help`)", file=sys.stderr)
        return error.exit_code
    except PlainError as error:
        print(f"chess-grpo: {error}", file=sys.stderr)
        return 1
    except click.Abort:
        return 130  # A shell's exit code after Ctrl-C.


if __name__ == "__main__":
    sys.exit(main())
