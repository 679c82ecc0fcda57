"""Which steps read each setting, and what else each setting means for the machinery, compared with a golden table."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from grpo.settings.reference_page import flattened
from grpo.settings.roles import is_compared, is_on_card, may_change, roles
from grpo.settings.tree import Settings, preset_names, read_settings
from grpo.settings.types import StepName
from steps.store import settings_by_step

# A new setting is a new line here, and each of its columns a decision. A changed list of steps changes the versions of those steps.
GOLDEN: Final = Path(__file__).with_name("golden_settings_by_step.txt")
READS: Final[Mapping[str, Callable[[Settings], dict[str, Any]]]] = {
    "build_boards": settings_by_step.dataset_settings,
    "check_boards": settings_by_step.check_settings,
    "pretrain": settings_by_step.pretrain_settings,
    "calibrate": settings_by_step.ladder_settings,
    "baseline": settings_by_step.baseline_settings,
    "finetune": settings_by_step.finetune_settings,
    "select": settings_by_step.selection_settings,
}


def names_read(step: str, preset: str) -> set[str]:
    """Return the dotted names of the settings that a step reads."""
    found = set(flattened(READS[step](read_settings(preset))))
    return found - {"heldout_depth"} | {"evaluation.heldout_depth"} if "heldout_depth" in found else found


def table() -> Iterator[str]:
    """Yield a line for each setting of a preset."""
    yield "setting | steps, preset laptop | steps, preset language | on resume | compared | on card"
    read = {preset: {step: names_read(step, preset) for step in READS} for preset in ("laptop", "language")}
    for name in flattened(Settings().model_dump(mode="json")):
        steps = [" ".join(step for step in READS if name in read[preset][step]) for preset in read]
        facts = ["may change" if may_change(name) else "", "yes" if is_compared(name) else "", "yes" if is_on_card(name) else ""]
        yield " | ".join([name, *steps, *facts]).rstrip()


def test_each_setting_means_for_the_machinery_what_the_table_says() -> None:
    assert "\n".join(table()) + "\n" == GOLDEN.read_text()


def test_the_steps_are_those_that_roles_can_name() -> None:
    assert tuple(READS) == get_args(StepName)


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("step", READS)
def test_a_step_is_given_the_values_of_the_settings_and_nothing_else(step: str, preset: str) -> None:
    settings = read_settings(preset)
    whole, part = flattened(settings.model_dump(mode="json")), flattened(READS[step](settings))
    if step == "build_boards":
        part["evaluation.heldout_depth"] = part.pop("heldout_depth")
    assert part == {name: whole[name] for name in part}
    assert part.keys() <= roles().keys()
