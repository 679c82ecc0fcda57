"""Options that several commands share."""

import argparse
import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo.settings.tree import Settings


def count(text: str) -> int:
    """Parse a whole number of at least 1; raises ValueError or ArgumentTypeError."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return number


def finite_number(text: str) -> float:
    """Parse a finite number; raises ValueError or ArgumentTypeError."""
    if not math.isfinite(number := float(text)):
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
