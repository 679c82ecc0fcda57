"""Each kind of policy is whole: whoever adds one is told by these tests what it still lacks."""

from importlib.util import find_spec
from typing import get_args

import pytest

from grpo.settings.tree import PolicyConfig, Settings
from steps.cards.training_pages import KIND_PAGES
from steps.kinds.lookup import KINDS, kind_of
from steps.policies.open import _OPENERS
from steps.store.versions import LOCKS
from steps.tracking.notes import GOALS


def test_every_kind_that_the_settings_name_is_looked_up_is_opened_drawn_and_reported() -> None:
    names = set(get_args(PolicyConfig.model_fields["kind"].annotation))
    assert KINDS.keys() == _OPENERS.keys() == KIND_PAGES.keys() == GOALS.keys() == names
    assert all(name == kind.name for name, kind in KINDS.items())


@pytest.mark.parametrize("name", KINDS)
def test_its_bodies_and_its_lock_are_there(name: str) -> None:
    kind = kind_of(Settings.model_validate({"policy": {"kind": name}}))
    assert find_spec(kind.pretrain_body)
    assert find_spec(kind.finetune_body)
    assert (kind.pretrain_spec.name, kind.finetune_spec.name) == ("pretrain", "finetune")
    assert LOCKS[kind.lock].is_file()
