"""How a resumed run differs from its origin, field by field: what may change, and what is refused.

A checkpoint holds weights and the state of Adam. Adam's moments are averages of past gradients: they outlive another number of states,
another pace or another weight of a regulariser within some hundred steps, for gradients stay of one size. They do not outlive another
objective unharmed: with advantages divided by their spread, say, gradients are some ten times as large, and the steps taken with moments of
small ones some five times too long for about a hundred steps. So what decides what is maximised is refused unless it is allowed by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo.engine.identity import EngineIdentity
from grpo.settings.roles import is_read_by, may_change, settings_read_by
from grpo.settings.tree import Settings
from steps.store import external_inputs

ALLOW_ENGINE: Final = "engine"
ALLOW_OBJECTIVE: Final = "objective"
ALLOWABLE: Final = (ALLOW_ENGINE, ALLOW_OBJECTIVE)
"""What is refused unless it is allowed by name."""

_KIND: Final = "policy.kind"
_MAX_SHOWN: Final = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One field that is another than in the origin."""

    field: str
    before: Any
    after: Any
    is_refused: bool
    allowed_as: str = ""
    """The name by which a refused change can be allowed; "" when by none."""

    def __str__(self) -> str:
        return f"{self.field}: origin {_shown(self.before)}, now {_shown(self.after)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Now:
    """What a run is about to be made with."""

    settings: Settings
    engine: EngineIdentity
    code: Mapping[str, Any]
    """Commit, dirty flag and lock."""
    device: str
    action_table: str
    """Hash of this code's."""


def changes_since(manifests: Mapping[str, Mapping[str, Any]], action_table: str, now: Now) -> list[Change]:
    """Return the differences between the origin and now, refused ones first, each with its field's full name.

    What it was made from is compared, not what it is called: by a file's content and name, not its folder.

    Args:
        manifests: by step, of the origin's outputs; those of finetune and select may be missing.
        action_table: hash of the one that the origin's pretrained policy was made with.
        now: what this run would be made with.
    """
    parts = {step: manifest["parts"] for step, manifest in manifests.items()}
    kind = parts["pretrain"]["settings"]["policy"].get("kind", "network")
    if kind != now.settings.policy.kind:  # Beside that no other difference says anything.
        return [Change(field=_KIND, before=kind, after=now.settings.policy.kind, is_refused=True)]
    then_made, inputs = parts["join_boards"]["inputs"], external_inputs.source_inputs(now.settings, now.engine)
    files_then = {name: each for name, each in then_made.items() if name.startswith(("file ", "judged "))}
    files_now = {name: each for name, each in inputs.items() if name.startswith(("file ", "judged "))}
    pretrained = _differences(parts["pretrain"]["settings"], settings_read_by("pretrain", now.settings))
    model_then = {"language.model's files": parts["pretrain"]["inputs"].get("model")}
    pretrained += _differences(model_then, {name: external_inputs.model_inputs(now.settings).get("model") for name in model_then})
    refused = [
        *_differences(parts["join_boards"]["settings"], settings_read_by("build_boards", now.settings)),
        *(each for each in pretrained if not may_change(each[0])),
        *_differences(files_then, files_now),
        *_differences({"action_table": action_table[:16]}, {"action_table": now.action_table[:16]}),
    ]
    engines = {"engine": then_made["engine"]}
    if "finetune" in parts and parts["finetune"]["inputs"]["engine"] != then_made["engine"]:
        engines["engine of finetune"] = parts["finetune"]["inputs"]["engine"]  # It was allowed to be another.
    by_engine = _differences(engines, dict.fromkeys(engines, str(now.engine)))
    rest, current = [each for each in pretrained if may_change(each[0])], now.settings.model_dump(mode="json")
    for step, each in parts.items():
        then = {name: value for name, value in each["settings"].items() if name in current}
        # Of what only measures, a field that the origin did not know yet is no change; of GRPO it is.
        rest += _differences(then, settings_read_by("finetune", now.settings) if step == "finetune" else _known(current, then))
    books = {"opening book": parts.get("baseline", {}).get("inputs", {}).get("opening book")}
    rest += _differences(books, {"opening book": external_inputs.opening_inputs(now.settings).get("opening book")})
    rest += _differences(
        {"device": parts["pretrain"]["inputs"].get("device"), **_code(manifests["pretrain"]["code"], kind)},
        {"device": now.device, **_code(now.code, kind)},
    )
    found = {name: Change(field=name, before=before, after=after, is_refused=True) for name, before, after in refused}
    for name, before, after in by_engine:
        found[name] = Change(field=name, before=before, after=after, is_refused=True, allowed_as=ALLOW_ENGINE)
    for name, before, after in rest:
        is_objective = is_read_by("finetune", name.partition(".")[0]) and not may_change(name)
        change = Change(field=name, before=before, after=after, is_refused=is_objective, allowed_as=ALLOW_OBJECTIVE if is_objective else "")
        found.setdefault(name, change)
    return sorted(found.values(), key=lambda change: (not change.is_refused, change.field))


def _known(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a tree the other has keys for too."""
    return {
        name: _known(value, then[name]) if isinstance(value, Mapping) and isinstance(then[name], Mapping) else value
        for name, value in now.items()
        if name in then
    }


def recorded(changes: Sequence[Change], allowed: Sequence[str]) -> dict[str, str]:
    """Return the tags of a run that say in what it differs from its origin, and what had to be allowed for that."""
    used = sorted({change.allowed_as for change in changes if change.is_refused})
    tags = {f"chess_grpo.changed.{_tag(change.field)}": f"{_shown(change.before)} -> {_shown(change.after)}" for change in changes}
    assert set(used) <= set(allowed)
    return tags | ({"chess_grpo.allowed": ", ".join(used)} if used else {})


def _code(code: Mapping[str, Any], kind: str) -> dict[str, Any]:
    lock = "lock" if kind == "network" else "language_lock"
    return {"code.commit": code["commit"], f"code.{lock}": code[lock]}


def _tag(field: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-./" else "_" for letter in field)  # What MLflow takes for a name.


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _differences(then: Any, now: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        names = sorted(then.keys() | now.keys())
        return [row for name in names for row in _differences(then.get(name), now.get(name), f"{prefix}.{name}" if prefix else name)]
    return [] if then == now else [(prefix, then, now)]
