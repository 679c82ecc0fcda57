"""The presets of the tests: settings with which all steps run in a minute."""

from pathlib import Path
from typing import Final

from grpo.settings.tree import Settings, read_settings

_FOLDER: Final = Path(__file__).parents[1] / "presets"
TEST: Final = str(_FOLDER / "test.toml")
"""A network, and games of a few plies."""


def tiny_settings(text: str = "") -> Settings:
    return read_settings(f'preset = "{TEST}"\n{text}')
