"""Commands that messages print, and a check of the settings in a flow's command."""

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError

FLOW_FILE: Final = "flows/chess_grpo.py"


class CommandError(PlainError, ValueError):
    """A flow command has a wrong option."""


def resume_command(run: str, places: Sequence[str] = ()) -> str:
    """`run` is Metaflow's id, `places` are values of Metaflow's `--with`, such as "batch"."""
    options = [word for place in places for word in ("--with", place)]
    return shlex.join(["python", FLOW_FILE, "--no-pylint", "resume", "--origin-run-id", run, *options])


def refuse_settings(arguments: Sequence[str]) -> None:
    """Raise CommandError for a wrong `--config` or `--config-value`, because Metaflow's message would not show the right form."""
    remedy = (
        "`--config-value settings 'preset = \"smoke\"'` (or `make run CONFIG=smoke`) for a preset, `--config settings my.toml` for a file"
    )
    options = ("--config", "--config-value")
    # Metaflow also takes `--config=settings FILE`.
    words = [part for word in arguments for part in (word.split("=", 1) if word.partition("=")[0] in options else [word])]
    for index, (option, name) in enumerate(itertools.pairwise(words)):
        if option not in options:
            continue
        if {"run", "resume"} & set(words[:index]):
            raise CommandError(f"{option} must stand before `run`: python {FLOW_FILE} {option} settings ... run")
        if name != "settings":
            raise CommandError(f"{option} {name}: the settings come after the word `settings`: {remedy}")
        value = (*words, "")[index + 2]
        if option == "--config" and not Path(value).is_file():
            raise CommandError(f"--config settings {value}: there is no such file; give {remedy}")


def option_values(arguments: Sequence[str], option: str = "--with") -> list[str]:
    """Return an option's values.

    >>> option_values(["run", "--with", "batch:cpu=4", "--with=retry"])
    ['batch:cpu=4', 'retry']
    """
    spaced = [value for name, value in itertools.pairwise(arguments) if name == option]
    return spaced + [word.removeprefix(f"{option}=") for word in arguments if word.startswith(f"{option}=")]


def pasteable(command: str) -> str:
    """Return the command with paths that the shell finds, such as `.venv/bin/chess-grpo show last` for `chess-grpo show last`."""
    program, _, rest = command.partition(" ")
    path = Path(sys.executable).parent / program
    if path.exists() and shutil.which(program) != str(path):
        program = shlex.quote(shortened(path))
    if rest.startswith(f"{FLOW_FILE} "):
        rest = shlex.quote(shortened(Path(__file__).resolve().parents[2] / FLOW_FILE)) + rest.removeprefix(FLOW_FILE)
    return f"{program} {rest}"


def shortened(path: str | Path) -> str:
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else str(path)
