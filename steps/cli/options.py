"""Options that several commands share."""

import json
import math
import os
import sys
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from grpo.uci.options import BEST_MOVE, UciError, UciOptions

if TYPE_CHECKING:
    from grpo.settings.tree import Settings

COUNT = click.IntRange(min=1)
MAX_PORT: Final = 65_535


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config` and `--set`, which `given_settings` reads."""
    values = click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="A setting (TOML): boards.num_train=3000.")
    return click.option("--config", metavar="NAME", help="A preset, or a TOML file.")(values(command))


def given_settings(config: str | None, values: tuple[str, ...]) -> "Settings":
    """Raises ConfigError."""
    from grpo.settings.tree import DEFAULT_PRESET, read_settings

    return read_settings("\n".join([f"preset = {json.dumps(config or DEFAULT_PRESET)}", *values]))


def open_in_browser(address: str) -> None:
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        webbrowser.open(address)


def _temperature(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number")
    try:
        return UciOptions(temperature=value).temperature
    except UciError as error:
        raise click.BadParameter(str(error)) from None


_SAMPLING: Final = "0 (default): play the most probable move. T > 0: sample moves at temperature T."
temperature_option = click.option("--temperature", type=float, callback=_temperature, default=BEST_MOVE, metavar="T", help=_SAMPLING)
_DEVICE: Final = click.Choice(["cpu", "cuda", "auto"])
device_option = click.option("--device", type=_DEVICE, default="cpu", help="Default: cpu.")  # A GPU gains nothing for single boards.
