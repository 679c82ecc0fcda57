"""The page of the configuration: every key is on it, with the default that the code has, and it is the present one."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from grpo.settings.reference_page import Setting, configuration_page, flattened, parts
from grpo.settings.tree import DEFAULT_PRESET, PRESET_FOLDER, Settings, preset_names, read_settings

SETTINGS = [setting for part in parts() for setting in part.settings]
PAGE = configuration_page()


def cells(line: str) -> list[str]:
    """Return the cells of a row of a table."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows(heading: str) -> dict[str, list[str]]:
    """Return the rows of a section's first table by their first cell without its backticks."""
    [section] = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    table = section[section.index("| ---") :].split("\n\n")[0].splitlines()[1:]
    return {cells(line)[0].strip("`"): cells(line)[1:] for line in table}


def test_every_key_of_the_settings_is_on_the_page_once() -> None:
    # Dumped, so that no reading of classes is compared with itself; the one section that may be left out is given.
    given = read_settings((PRESET_FOLDER / "clean.toml").read_text())
    keys = set(flattened(given.model_dump(mode="json")))
    assert sorted(keys) == sorted(setting.key for setting in SETTINGS)


def test_the_default_that_the_page_names_is_the_one_that_a_run_has() -> None:
    defaults = flattened(Settings().model_dump())
    for setting in SETTINGS:
        if setting.key.startswith("grpo.field_notes."):
            assert setting.default is PydanticUndefined
            continue
        section, _, name = setting.key.rpartition(".")
        shown = rows(section or "Top level")[name][1]
        written = None if shown == "none" else tomllib.loads(f"value = {shown.strip('`')}")["value"]
        default = defaults[setting.key]
        assert written == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_key_has_a_type_and_a_meaning(setting: Setting) -> None:
    assert re.fullmatch(r"(true or false|text|(whole )?number|list of|\[|`\").*", setting.kind)
    assert re.fullmatch(r"[^\n]{5,}\.", setting.meaning), "a sentence"


def test_the_table_of_presets_lays_each_over_the_default_to_what_a_run_with_it_has() -> None:
    names = [name for name in preset_names() if name != DEFAULT_PRESET]
    table = rows("Presets")
    default = flattened(Settings().model_dump(mode="json"))
    for column, name in enumerate(names, start=1):
        told = {key: tomllib.loads(f"value = {row[column].strip('`')}")["value"] for key, row in table.items() if row[column]}
        with_preset = flattened(read_settings(name).model_dump(mode="json"))
        assert told == {key: value for key, value in with_preset.items() if default.get(key) != value}


def test_the_table_of_kinds_has_what_settings_of_each_kind_begin_with_and_every_key_in_which_they_differ() -> None:
    kinds = ("network", "language")
    begun = [flattened(Settings.model_validate({"policy": {"kind": kind}}).model_dump(mode="json")) for kind in kinds]
    differing = [key for key in begun[0] if begun[0][key] != begun[1][key] and key != "policy.kind"]
    assert differing
    told = {key: [tomllib.loads(f"value = {cell.strip('`')}")["value"] for cell in row] for key, row in rows("Defaults by kind").items()}
    assert told == {key: [settings[key] for settings in begun] for key in differing}


def test_the_page_is_printed_by_the_command_that_it_names_and_is_the_present_one() -> None:
    [command] = re.findall(r"`python (-m [\w.]+) > docs/configuration.md`", PAGE)
    printed = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=True)
    assert printed.stdout == (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
