"""What each setting means for versions, resuming, run comparisons and the model card, looked up by its dotted name."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from grpo.settings.tree import Settings
from grpo.settings.types import Role, StepName, section_of

_MAX_LENGTH: Final = 60
_ROOT: Final = Role(may_change_on_resume=False, is_compared=True)


@cache
def roles() -> Mapping[str, Role]:
    """Return the role of each setting and of each section by its dotted name, with inherited values filled in."""
    return dict(_roles(Settings, _ROOT))


def settings_read_by(step: StepName, settings: Settings) -> dict[str, Any]:
    """Return the part of the settings that a step reads, nested and JSON-able."""

    def read(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        found = {}
        for name, value in section.items():
            role = roles()[prefix + name]
            if isinstance(value, dict):
                if below := read(value, f"{prefix}{name}."):
                    found[name] = below
            elif step in (role.read_by or ()) and role.only_with in (None, settings.policy.kind):
                found[name] = value
        return found

    return read(settings.model_dump(mode="json"))


def is_read_by(step: StepName, name: str) -> bool:
    """Return whether a step reads a setting or a section; False for an unknown name."""
    return name in roles() and step in (roles()[name].read_by or ())


def may_change(name: str) -> bool:
    """Return whether a resumed run may use another value than its origin; False for an unknown name."""
    return name in roles() and bool(roles()[name].may_change_on_resume)


def changed_objective(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what of the objective differs between two runs, by dotted name, given the settings that `finetune` reads of each.

    >>> changed_objective({"grpo": {"num_own_moves": 1, "group_size": 8}}, {"grpo": {"num_own_moves": 2, "group_size": 16}})
    ['grpo.num_own_moves']
    """
    before, after = flattened(then), flattened(now)
    return [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name) and not may_change(name)]


def is_compared(name: str) -> bool:
    """Return whether a setting is logged for comparing runs; True for an unknown name."""
    return name not in roles() or bool(roles()[name].is_compared)


def is_main(name: str) -> bool:
    """Return whether the model card and MLflow's parameters show a setting even when it is the default."""
    return name in roles() and roles()[name].is_main


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name, in their order."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def compared_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings by which runs are compared, as short texts; settings that are off are left out.

    >>> compared_settings({"seed": 1, "boards": {"num_tasks": 2}, "evaluation": {"ladder": {"nodes": [1, 300]}}})
    {'seed': '1', 'evaluation.ladder.nodes': '1 300'}
    """
    return {name: _short(value) for name, value in flattened(settings).items() if is_compared(name) and value not in (None, "", [], ())}


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        text = " ".join(_short(each) for each in value)
        return text if len(text) <= _MAX_LENGTH else f"{_short(value[0])} ... {_short(value[-1])} ({len(value)})"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."


def _roles(section: type[BaseModel], above: Role, prefix: str = "") -> Iterator[tuple[str, Role]]:
    for name, field in section.model_fields.items():
        own = next((given for given in field.metadata if isinstance(given, Role)), Role())
        passed_on = {each.name: getattr(above, each.name) for each in fields(Role) if getattr(own, each.name) is None}
        role = replace(own, **passed_on)
        assert role.read_by is not None, f"{prefix}{name} does not say which steps read it"
        yield f"{prefix}{name}", role
        if below := section_of(field.annotation):
            yield from _roles(below, role, f"{prefix}{name}.")
