"""The options `--config` and `--set`, by which every command that reads settings is given them."""

import argparse
import json

from grpo.settings.tree import DEFAULT_PRESET, Settings, read_settings


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add both options."""
    parser.add_argument(
        "--config", default=DEFAULT_PRESET, metavar="NAME", help="a preset, or a TOML file that names what differs from one"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help='such as boards.num_train=3000; values are TOML: "text"'
    )


def given_settings(given: argparse.Namespace) -> Settings:
    """Return the settings that the options give; raises ConfigError for bad ones."""
    return read_settings("\n".join([f"preset = {json.dumps(given.config)}", *given.set]))
