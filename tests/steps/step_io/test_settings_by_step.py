"""Which steps read each setting, and what else each setting means for the machinery, compared with a golden table."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final, get_args

import pytest

from grpo.settings.reference_page import flattened
from grpo.settings.roles import is_compared, is_main, may_change, roles, settings_read_by
from grpo.settings.tree import Settings, preset_names, read_settings
from grpo.settings.types import StepName
from steps.store.versions import ROOT

# A new setting is a new line here, and each of its columns a decision. A changed list of steps changes the versions of those steps.
GOLDEN: Final = Path(__file__).with_name("golden_settings_by_step.txt")
BODIES: Final = sorted((ROOT / "steps" / "bodies").glob("*.py"))
STEPS: Final = get_args(StepName)


def names_read(step: StepName, preset: str) -> set[str]:
    """Return the dotted names of the settings that a step reads."""
    return set(flattened(settings_read_by(step, read_settings(preset))))


def table() -> Iterator[str]:
    """Yield a line for each setting of a preset."""
    yield "setting | steps, preset laptop | steps, preset language | on resume | compared | on card"
    read = {preset: {step: names_read(step, preset) for step in STEPS} for preset in ("laptop", "language")}
    for name in flattened(Settings().model_dump(mode="json")):
        steps = [" ".join(step for step in STEPS if name in read[preset][step]) for preset in read]
        facts = ["may change" if may_change(name) else "", "yes" if is_compared(name) else "", "yes" if is_main(name) else ""]
        yield " | ".join([name, *steps, *facts]).rstrip()


def test_each_setting_means_for_the_machinery_what_the_table_says() -> None:
    assert "\n".join(table()) + "\n" == GOLDEN.read_text()


def test_every_step_that_reads_settings_says_whose_they_are() -> None:
    specs = [import_module(f"steps.bodies.{body.stem}").SPEC for body in BODIES if "SPEC: Final" in body.read_text()]
    assert {spec.reads for spec in specs} == {*STEPS, None}
    assert [spec.name for spec in specs if spec.reads is None] == ["report"]


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_given_the_values_of_the_settings_and_nothing_else(step: StepName, preset: str) -> None:
    settings = read_settings(preset)
    whole, part = flattened(settings.model_dump(mode="json")), flattened(settings_read_by(step, settings))
    assert part == {name: whole[name] for name in part}
    assert part.keys() <= roles().keys()
