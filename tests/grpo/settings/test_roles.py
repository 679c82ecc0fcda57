"""What a setting means for versions, resuming, comparisons and the model card is said once, at the setting."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from grpo.settings.roles import is_compared, is_main, is_read_by, may_change, roles, settings_read_by
from grpo.settings.tree import Settings, preset_names, read_settings


def names(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of sections and settings."""
    for name, value in section.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")


def test_every_name_in_the_settings_has_a_role_and_no_other_name_has_one() -> None:
    # Preset `clean` gives the one section that may be left out.
    assert set(names(read_settings("clean").model_dump(mode="json"))) == roles().keys()


@pytest.mark.parametrize("preset", preset_names())
def test_every_setting_is_read_by_a_step_or_says_that_none_reads_it(preset: str) -> None:
    unread = [name for name in names(read_settings(preset).model_dump(mode="json")) if not roles()[name].read_by]
    sections = ("boards.files", "boards.exclude", "boards.num_tasks", "evaluation.opening_book", "selection.num_tasks", "resources")
    assert {name for name in unread if not name.startswith("resources.")} == set(sections)


def test_a_setting_has_the_role_of_its_section_but_for_what_it_says_itself() -> None:
    section, own = roles()["boards"], roles()["boards.num_units"]
    assert own.read_by == section.read_by == ("build_boards", "check_boards")
    assert (own.is_compared, section.is_compared) == (False, True)
    assert roles()["boards.games.nodes"] == section
    assert not roles()["language.rewards.similarity"].may_change_on_resume
    assert roles()["language.rewards.similarity"].read_by == ("finetune",)


def test_a_section_on_the_card_would_not_put_its_settings_there() -> None:
    shown = {name for name in roles() if is_main(name)}
    assert {"seed", "grpo.learning_rate", "grpo.estimator", "language.model"} <= shown
    assert not [name for name in shown if name in {above.rpartition(".")[0] for above in roles()}]


def test_a_name_that_is_no_setting_is_compared_and_nothing_else() -> None:
    assert is_compared("grpo.gone")
    assert not is_main("grpo.gone")
    assert not may_change("grpo.gone")
    assert not is_read_by("finetune", "grpo.gone")


def test_a_step_reads_of_a_kind_of_policy_what_is_only_for_that_kind() -> None:
    network, language = Settings(), read_settings("language")
    assert settings_read_by("pretrain", network).keys() == {"seed", "policy", "pretrain"}
    assert settings_read_by("pretrain", language).keys() == {"seed", "policy", "language"}
    assert "kind" not in settings_read_by("finetune", network)["policy"]
    assert settings_read_by("finetune", language)["policy"]["kind"] == "language"


def test_a_section_of_which_a_step_reads_nothing_is_left_out() -> None:
    assert settings_read_by("calibrate", Settings()).keys() == {"evaluation"}
    assert "rewards" not in settings_read_by("baseline", read_settings("language"))["language"]


def test_a_section_that_is_not_there_is_read_as_nothing_and_one_that_is_as_a_whole() -> None:
    assert settings_read_by("finetune", Settings())["grpo"]["field_notes"] is None
    given = read_settings("clean")
    assert settings_read_by("finetune", given)["grpo"] == given.grpo.model_dump(mode="json")
