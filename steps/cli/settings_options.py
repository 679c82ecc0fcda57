"""The options `--config` and `--set` of all commands that read settings."""

import argparse
import json

from grpo.settings.tree import DEFAULT_PRESET, Settings, read_settings


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add both options."""
    parser.add_argument("--config", default=DEFAULT_PRESET, metavar="NAME", help="a preset, or a TOML file with the differences from one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help='such as boards.num_train=3000; values are TOML: "text"'
    )


def given_settings(given: argparse.Namespace) -> Settings:
    """Return the settings of these options; raises ConfigError for invalid ones."""
    return read_settings("\n".join([f"preset = {json.dumps(given.config)}", *given.set]))
