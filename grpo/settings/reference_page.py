"""Print `docs/configuration.md`: every setting with its type, default, range and meaning, and what each preset changes."""

import inspect
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from grpo.base.markdown import filled
from grpo.settings.language import KIND_DEFAULTS
from grpo.settings.roles import flattened, may_change
from grpo.settings.tree import DEFAULT_PRESET, FILTER_PROFILES, PRESET_FOLDER, Settings, preset_names
from grpo.settings.types import Section, section_of

_INTRO: Final = f"""# Configuration

`python -m grpo.settings.reference_page > docs/configuration.md` prints this page from the settings' classes; a test compares the two.

Settings are TOML, and name only what differs from a preset (`{DEFAULT_PRESET}` if none is named). A preset is one of those below, or the
path of another settings file. Tables and dotted keys mean the same:

```toml
preset = "smoke"
seed = 7

[grpo]
learning_rate = 5e-4
self_play.fraction = 0.5
```

`make run CONFIG=my.toml`, `make run CONFIG=smoke SET="seed=7 grpo.learning_rate=5e-4"`, and Metaflow's `--config settings my.toml` or
`--config-value settings '...'` before the word `run` all read the same. Unknown keys, values of the wrong type or out of range, and keys
that contradict each other stop the run before any work, with one line for each ([troubleshooting](troubleshooting.md#settings)). The
column *on resume* says which settings may change with `--resume-from`; the others are refused ([why](resuming.md#what-may-change)).
Facts of the machine are environment variables, not settings: [environment](environment.md).
"""

_TOP: Final = "Top level"
_BOUNDS: Final = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}", "multiple_of": "a multiple of {}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One key with a plain value."""

    key: str
    """The dotted name."""
    kind: str
    """Its type in words, with range or choices."""
    default: Any
    """`PydanticUndefined` where there is none."""
    meaning: str
    may_change: bool
    """Whether a resumed run may use another value than its origin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSection:
    """One section: its settings and the sections inside it."""

    key: str
    """The dotted name; empty at the top level."""
    meaning: str
    settings: tuple[Setting, ...]
    sections: Mapping[str, str]
    """Key of a section inside -> its docstring."""


def parts(section: type[BaseModel] = Settings, key: str = "", said: str = "") -> Iterator[PageSection]:
    """Yield each section of the settings before the sections inside it, in the order of the classes."""
    settings, inside = [], {}
    for name, field in section.model_fields.items():
        full = f"{key}.{name}".lstrip(".")
        below = section_of(field.annotation)
        if below is None:
            kind, meaning = _kind(field.annotation, field.metadata), _said_of(section, name)
            settings.append(Setting(key=full, kind=kind, default=field.default, meaning=meaning, may_change=may_change(full)))
        else:
            inside[full] = (below, _said_of(section, name))
    sections = {full: said_below or _on_one_line(below.__doc__ or "") for full, (below, said_below) in inside.items()}
    # A class that only changes the defaults of another section has no description of its own, but its key has.
    meaning = _on_one_line(section.__doc__ or "") if Section in section.__bases__ or not said else said
    yield PageSection(key=key, meaning=meaning, settings=tuple(settings), sections=sections)
    for full, (below, said_below) in inside.items():
        yield from parts(below, full, said_below)


def _said_of(section: type[BaseModel], name: str) -> str:
    """Return the docstring of a key; if a subclass changes only its default, that of the base class."""
    for kind in section.__mro__:
        if issubclass(kind, BaseModel) and name in kind.model_fields and kind.model_fields[name].description:
            return _on_one_line(kind.model_fields[name].description or "")
    return ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """Return a type and its constraints in words."""
    origin, given = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(given[0], [*given[1:], *metadata])
    if origin in (Union, types.UnionType):
        [plain] = [one for one in given if one is not type(None)]
        return f"{_kind(plain, metadata)}; optional"
    if origin is Literal:
        return _choice(given)
    if origin is tuple:
        items = [_kind(one, []) for one in given if one is not Ellipsis]
        fewest = ", one or more" if _narrowed(metadata, "min_length") else ""
        return f"list of {items[0]}{fewest}" if given[-1] is Ellipsis else f"[{', '.join(items)}]"
    if inspect.isclass(annotation) and issubclass(annotation, StrEnum):
        return _choice([choice.value for choice in annotation])
    word = {bool: "true or false", int: "whole number", float: "number", str: "text"}[annotation]
    bounds = [words.format(_number(bound)) for name, words in _BOUNDS.items() if (bound := _narrowed(metadata, name)) is not None]
    return ", ".join([word, *bounds])


def _choice(values: Sequence[Any]) -> str:
    shown = [f"`{_toml(value)}`" for value in values]
    return f"{', '.join(shown[:-1])} or {shown[-1]}"


def _narrowed(metadata: list[Any], name: str) -> Any:
    """Return the value of a constraint, None if there is none of this name; pydantic has it bare or inside a field."""
    flat = [inner for one in metadata for inner in (one.metadata if isinstance(one, FieldInfo) else [one])]
    return next((value for one in flat if (value := getattr(one, name, None)) is not None), None)


def _default(value: Any) -> str:
    return "required" if value is PydanticUndefined else "none" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return _number(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    return str(int(value)) if value == int(value) and value >= 1_000 else repr(value)


def configuration_page() -> str:
    """Return `docs/configuration.md`."""
    found = list(parts())
    return filled("\n".join([_INTRO, _presets(found), _kinds(found), *(_part(part) for part in found)]))


def _presets(found: list[PageSection]) -> str:
    """Return the table of what each preset changes, in the order of the page; the default preset changes nothing."""
    names = [name for name in preset_names() if name != DEFAULT_PRESET]
    given = {name: _given(name) for name in names}
    rows = []
    for setting in (setting for part in found for setting in part.settings):
        default = [*setting.default] if isinstance(setting.default, tuple) else setting.default
        changed = {name: given[name][setting.key] for name in names if given[name].get(setting.key, default) != default}
        if changed:
            cells = [f"`{_toml(changed[name])}`" if name in changed else "" for name in names]
            rows.append([f"`{setting.key}`", _default(setting.default), *cells])
    return (
        f"## Presets\n\nWhat each preset changes of `{DEFAULT_PRESET}`, the defaults; an empty cell changes nothing. The files are in"
        f" `grpo/settings/presets`; each says what it is for.\n\n{_table(['key', DEFAULT_PRESET, *names], rows)}"
    )


def _given(preset: str) -> dict[str, Any]:
    """Return what a preset sets by dotted key, itself and through the kind of its policy."""
    given = flattened(tomllib.loads((PRESET_FOLDER / f"{preset}.toml").read_text(encoding="utf-8")))
    kind = str(given.get("policy.kind", "network"))
    return {f"grpo.{key}": value for key, value in flattened(KIND_DEFAULTS[kind]).items()} | given


def _kinds(found: list[PageSection]) -> str:
    """Return the table of the defaults that depend on the kind of policy, in the order of the page."""
    given = {kind: flattened(defaults) for kind, defaults in KIND_DEFAULTS.items()}
    rows = [
        [f"`{setting.key}`", *(_default(given[kind].get(setting.key.removeprefix("grpo."), setting.default)) for kind in given)]
        for setting in (setting for part in found for setting in part.settings)
        if any(setting.key.removeprefix("grpo.") in changed for changed in given.values()) and setting.key.startswith("grpo.")
    ]
    return (
        f'## Defaults by kind\n\nThese defaults of `[grpo]` differ with `policy.kind = "language"`; presets and your own keys override'
        f" them ([why](language.md#defaults)).\n\n{_table(['key', *given], rows)}"
    )


def _part(part: PageSection) -> str:
    rows = [
        [f"`{_name(one.key)}`", one.kind, _default(one.default), "may change" if one.may_change else "", one.meaning]
        for one in part.settings
    ]
    rows += [[f"`{_name(key)}`", f"section [{key}](#{_anchor(key)})", "", "", said] for key, said in part.sections.items()]
    profiles = _profiles() if part.key == "boards.filters" else ""
    return f"## {part.key or _TOP}\n\n{part.meaning}\n\n{_table(['key', 'type', 'default', 'on resume', 'meaning'], rows)}{profiles}"


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return heading.replace(".", "")


def _profiles() -> str:
    rows = [
        [f"`{name}`", ", ".join(f"`{key} = {_toml(value)}`" for key, value in keys.items()) or "no filter"]
        for name, keys in FILTER_PROFILES.items()
    ]
    return f"\n{_table(['profile', 'sets'], rows)}"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    print(configuration_page(), end="")
