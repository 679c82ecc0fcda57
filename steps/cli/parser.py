"""An argparse parser with examples in its help, and with suggestions in its error messages."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from grpo.base.suggestions import did_you_mean
from steps.runtime.terminal_lines import say, wrapped

if TYPE_CHECKING:
    from grpo.settings.tree import Settings


class TeachingParser(argparse.ArgumentParser):
    """The parser of a command and of its subcommands."""

    def __init__(self, **given: Any) -> None:
        # Abbreviations are off: a new option could make them ambiguous.
        super().__init__(**{"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter, **given})
        self.register("type", int, whole_number)
        self.register("type", float, finite_number)
        self._parts: argparse._SubParsersAction[Any] | None = None
        self.example = ""
        """A command line that works, which errors show when an argument is missing."""

    def add_subparsers(self, **given: Any) -> Any:
        """Add subcommands, as argparse does; they are stored, so that an error can name them."""
        self._parts = super().add_subparsers(**given)
        return self._parts

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and reject unknown arguments here, where the known options are at hand."""
        given, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = next((word for word in unknown if word.startswith("-")), None)
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            if option is None:
                takes_words = any(not action.option_strings for action in self._actions)
                self.error(f"unexpected argument {unknown[0]!r}" + ("" if takes_words else f"; known here: {', '.join(known)}"))
            self.error(f"there is no option {option.partition('=')[0]}; {did_you_mean(option.partition('=')[0], known)}")
        return given, unknown

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end with code 2."""
        if self._parts is not None and message.endswith("are required: COMMAND"):
            message = f"a command is missing; known here: {', '.join(self._parts.choices)}"
        message = message.removeprefix("argument ").replace("the following arguments are required: ", "missing: ")
        if self.example and message.startswith("missing: "):
            message += f", as in `{self.example}`"
        say(f"{self.format_usage()}{self.prog}: {message}\n`{self.prog} --help` says more, with examples.", sys.stderr)
        self.exit(2)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # Checked before conversion: argparse's message for enumerations, "invalid SprtModel value", does not list the choices.
        if action.choices is not None and action is not self._parts:
            self._check_value(action, arg_string)
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse has no public hook for this; its own message is "invalid choice: 'mtach' (choose from 'boards', ...)".
        if action.choices is not None and value not in action.choices:
            what = "there is no command" if action is self._parts else "it cannot be"
            raise argparse.ArgumentError(
                None if action is self._parts else action, f"{what} {str(value)!r}; {did_you_mean(str(value), action.choices)}"
            )


def teach(
    parser: TeachingParser,
    *,
    about: str,
    examples: Sequence[str],
    codes: str,
    page: str,
    lists: Mapping[str, Iterable[tuple[str, str]]] | None = None,
) -> None:
    """Set the help text of a parser: description, lists of commands, examples, exit codes and documentation page."""
    parser.description, parser.example = wrapped(about), next(iter(examples), "")
    sections = [f"{heading}:\n{_table(rows)}" for heading, rows in (lists or {}).items()]
    sections.append("examples:\n" + "\n".join(f"  {example}" for example in examples))
    sections.append(wrapped(f"exit codes: {codes}") + "\n" + wrapped(f"see: {page}"))
    parser.epilog = "\n\n".join(sections)


def whole_number(text: str) -> int:
    """Parse a whole number; raises ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def count(text: str) -> int:
    """Parse a whole number of at least 1; raises ArgumentTypeError."""
    if (number := whole_number(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return number


def finite_number(text: str) -> float:
    """Parse a finite number; raises ArgumentTypeError, also for NaN and infinity."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options `--config` and `--set` of all commands that read settings."""
    from grpo.settings.tree import DEFAULT_PRESET  # Here, because it costs most of the start of a command without settings.

    parser.add_argument("--config", default=DEFAULT_PRESET, metavar="NAME", help="a preset, or a TOML file with the differences from one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help='such as boards.num_train=3000; values are TOML: "text"'
    )


def given_settings(given: argparse.Namespace) -> "Settings":
    """Return the settings of these options; raises ConfigError for invalid ones."""
    from grpo.settings.tree import read_settings

    return read_settings("\n".join([f"preset = {json.dumps(given.config)}", *given.set]))


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(wrapped(text, f"  {name:<14}") for name, text in rows)
