"""Every setting with its type, default, range and meaning, and what each preset changes. `docs/configuration.md` is printed from it."""

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

from grpo.settings.language import KIND_DEFAULTS
from grpo.settings.tree import DEFAULT_PRESET, FILTER_PROFILES, PRESET_FOLDER, Settings, preset_names
from grpo.settings.types import Section

_INTRO: Final = f"""# Configuration

Printed from the settings' own classes by `python -m grpo.settings.reference_page > docs/configuration.md`; a test holds them together.

Settings are TOML, and name only what differs from a preset (`{DEFAULT_PRESET}`, if none is named). A preset is one of those below, or the
path of another file of this kind. Tables and dotted keys mean the same:

```toml
preset = "smoke"
seed = 7

[grpo]
learning_rate = 5e-4
own_games.share = 0.5
```

`make run CONFIG=my.toml`, `make run CONFIG=smoke SET="seed=7 grpo.learning_rate=5e-4"`, and Metaflow's `--config settings my.toml` or
`--config-value settings '...'` before the word `run` all read the same. An unknown key, a value of another type or out of range, and keys
that contradict each other end the run before any work, with a line for each ([troubleshooting](troubleshooting.md#settings)). What may
change on `--resume-from` is listed in [resuming](resuming.md#what-may-change). Facts of the machine are variables and no settings:
[environment](environment.md).
"""

_TOP: Final = "Top level"
_BOUNDS: Final = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}", "multiple_of": "a multiple of {}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One key with a plain value."""

    key: str
    """With dots."""
    kind: str
    """Its type in words, with range or choices."""
    default: Any
    """`PydanticUndefined` where there is none."""
    meaning: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSection:
    """One section: what stands directly in it, and the sections inside it."""

    key: str
    """With dots; empty at the top."""
    meaning: str
    settings: tuple[Setting, ...]
    sections: Mapping[str, str]
    """Key of a section inside -> what the docstring below that key says."""


def parts(section: type[BaseModel] = Settings, key: str = "", said: str = "") -> Iterator[PageSection]:
    """Yield each section of the settings before the sections inside it, in the order in which the classes name them."""
    settings, inside = [], {}
    for name, field in section.model_fields.items():
        full = f"{key}.{name}".lstrip(".")
        below = _section_of(field.annotation)
        if below is None:
            kind = _kind(field.annotation, field.metadata)
            settings.append(Setting(key=full, kind=kind, default=field.default, meaning=_said_of(section, name)))
        else:
            inside[full] = (below, _said_of(section, name))
    sections = {full: said_below or _on_one_line(below.__doc__ or "") for full, (below, said_below) in inside.items()}
    # A class made from another section only to change defaults says nothing of its own, but its key does.
    meaning = _on_one_line(section.__doc__ or "") if Section in section.__bases__ or not said else said
    yield PageSection(key=key, meaning=meaning, settings=tuple(settings), sections=sections)
    for full, (below, said_below) in inside.items():
        yield from parts(below, full, said_below)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key holds, be it one that may be left out; None for a plain value."""
    found = [one for one in (annotation, *get_args(annotation)) if inspect.isclass(one) and issubclass(one, BaseModel)]
    return found[0] if found else None


def _said_of(section: type[BaseModel], name: str) -> str:
    """Return the docstring below a key; of one whose default alone is another in this section, that of the section it comes from."""
    for kind in section.__mro__:
        if issubclass(kind, BaseModel) and name in kind.model_fields and kind.model_fields[name].description:
            return _on_one_line(kind.model_fields[name].description or "")
    return ""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _kind(annotation: Any, metadata: list[Any]) -> str:
    """Return a type in words with what narrows it."""
    origin, given = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(given[0], [*given[1:], *metadata])
    if origin in (Union, types.UnionType):
        [plain] = [one for one in given if one is not type(None)]
        return f"{_kind(plain, metadata)}; none if left out"
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
    """Return what a constraint narrows to, None where there is none of this name; pydantic gives it bare or inside a field."""
    flat = [inner for one in metadata for inner in (one.metadata if isinstance(one, FieldInfo) else [one])]
    return next((value for one in flat if (value := getattr(one, name, None)) is not None), None)


def _default(value: Any) -> str:
    return "required" if value is PydanticUndefined else "none" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    """Return a value as one writes it in TOML."""
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


def flattened(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the leaves of a tree of tables by dotted key."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= flattened(value, (*path, name)) if isinstance(value, dict) else {".".join((*path, name)): value}
    return leaves


def configuration_page() -> str:
    """Return `docs/configuration.md`."""
    found = list(parts())
    return "\n".join([_INTRO, _presets(found), _kinds(found), *(_part(part) for part in found)])


def _presets(found: list[PageSection]) -> str:
    """Return the table of what presets change, in the order of the page; all but the default, which changes nothing."""
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
        f"## Presets\n\nWhat each changes of `{DEFAULT_PRESET}`, which is the defaults; an empty cell changes nothing. The files, with what"
        f" each is for, are in `grpo/settings/presets`.\n\n{_table(['key', DEFAULT_PRESET, *names], rows)}"
    )


def _given(preset: str) -> dict[str, Any]:
    """Return what a preset sets, by dotted key: itself, and by its policy's kind."""
    given = flattened(tomllib.loads((PRESET_FOLDER / f"{preset}.toml").read_text(encoding="utf-8")))
    kind = str(given.get("policy.kind", "network"))
    return {f"grpo.{key}": value for key, value in flattened(KIND_DEFAULTS[kind]).items()} | given


def _kinds(found: list[PageSection]) -> str:
    """Return the table of the defaults that depend on what the policy is, in the order of the page."""
    given = {kind: flattened(defaults) for kind, defaults in KIND_DEFAULTS.items()}
    rows = [
        [f"`{setting.key}`", *(_default(given[kind].get(setting.key.removeprefix("grpo."), setting.default)) for kind in given)]
        for setting in (setting for part in found for setting in part.settings)
        if any(setting.key.removeprefix("grpo.") in changed for changed in given.values()) and setting.key.startswith("grpo.")
    ]
    return (
        f'## Defaults by kind\n\nWith `policy.kind = "language"` these of `[grpo]` begin elsewhere; presets and your own keys are laid'
        f" over them as ever ([why](language.md#defaults)).\n\n{_table(['key', *given], rows)}"
    )


def _part(part: PageSection) -> str:
    rows = [[f"`{_name(one.key)}`", one.kind, _default(one.default), one.meaning] for one in part.settings]
    rows += [[f"`{_name(key)}`", f"section [{key}](#{_anchor(key)})", "", said] for key, said in part.sections.items()]
    profiles = _profiles() if part.key == "boards.filters" else ""
    return f"## {part.key or _TOP}\n\n{part.meaning}\n\n{_table(['key', 'type', 'default', 'meaning'], rows)}{profiles}"


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def _anchor(heading: str) -> str:
    """Return what a heading is linked by."""
    return heading.replace(".", "")


def _profiles() -> str:
    rows = [
        [f"`{name}`", ", ".join(f"`{key} = {_toml(value)}`" for key, value in keys.items()) or "nothing is dropped"]
        for name, keys in FILTER_PROFILES.items()
    ]
    return f"\n{_table(['profile', 'sets'], rows)}"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    print(configuration_page(), end="")
