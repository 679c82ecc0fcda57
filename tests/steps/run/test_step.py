"""A step sees what it declares, and declares nothing that does not exist."""

import pytest

from grpo.settings.names import declared
from grpo.settings.tree import Settings
from grpo.settings.types import UndeclaredSettingError
from steps import STEPS
from steps.run.outside import OUTSIDE
from steps.run.step import Outside, Step, registered_steps, step_of


def test_a_body_reads_the_settings_that_its_step_declares_and_no_others() -> None:
    shown = declared(Settings(), ("seed", "boards.depth", "evaluation"))
    assert (shown.seed, shown.boards.depth, shown.evaluation) == (0, 5, Settings().evaluation)
    for read in (lambda: shown.boards.num_train, lambda: shown.grpo, lambda: shown.grpo.states_per_step):
        with pytest.raises(UndeclaredSettingError, match=r"which Step\.reads does not declare"):
            read()


def test_a_declaration_that_names_what_does_not_exist_is_refused_when_it_is_imported() -> None:
    for wrong in ({"reads": ("grpo.state_per_step",)}, {"reads": ("board",)}, {"inputs": ("pretrained",)}):
        with pytest.raises(ValueError, match="no step or setting is called so"):
            Step(name="x", says="", **wrong)  # type: ignore[arg-type]


def test_everything_outside_has_a_hash_and_inputs_come_from_earlier_steps() -> None:
    assert OUTSIDE.keys() == set(Outside)
    for name in STEPS[1:-1]:
        assert all(STEPS.index(each) < STEPS.index(name) for each in step_of(name).inputs)
    assert tuple(name for name in STEPS[1:-1] if step_of(name).is_inherited) == ("build_boards", "join_boards", "check_boards", "pretrain")
    assert registered_steps() == ("join_boards", "check_boards", "pretrain", "calibrate", "baseline")
