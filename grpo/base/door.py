"""The door: data from a tracking server, a bucket, a record, a manifest or a policy's folder is checked here before the code uses it.

Ids and hashes must match their pattern. Names of files must be relative and stay in their folder. So no path that the code reads, writes
or deletes can lead out of the store, whoever wrote the data.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, ConfigDict, StringConstraints, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from grpo.base.errors import PlainError

_T = TypeVar("_T")
_LONGEST_NAME: Final = 1_024


class ForeignError(PlainError, ValueError):
    """Data from outside does not have the form that this code writes; the message names the place and the first fault."""


def _inside(name: str) -> str:
    """Return a relative path in POSIX form. Raises ValueError for a path that could lead out of its folder."""
    if not name.isprintable() or "\\" in name or len(name) > _LONGEST_NAME or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError("not a path inside a folder")
    return name


ID_PATTERN: Final = "[A-Za-z0-9_][A-Za-z0-9_-]{0,127}"
Id = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN}$")]
"""Name of a run or of a preset."""
VersionHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{24}$")]
"""Version of a step's output."""
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 as hex."""
FileName = Annotated[str, AfterValidator(_inside)]
"""Relative path of a file inside its folder."""
FILES: Final = TypeAdapter(dict[FileName, Hash], config=ConfigDict(strict=True))
"""Relative path -> SHA-256."""


STRICT: Final = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
"""Decorator that makes a TypedDict a form without unknown keys, conversions of types, and NaN."""


@with_config(ConfigDict(strict=True))
class ManifestForm(TypedDict):
    """The keys that every manifest has, beside the facts of its writer."""

    files: dict[FileName, Hash]
    aside: dict[FileName, Hash]
    output_hash: Hash


MANIFEST_FORM: Final = TypeAdapter(ManifestForm)


def checked(form: TypeAdapter[_T], value: object, place: object) -> _T:
    """Return a value from outside, checked against its form. Raises ForeignError, which names the place."""
    try:
        return form.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ForeignError(f"{place} was not written by this code ({f'{where}: ' if where else ''}{first['msg']})") from None


def inside(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder. Raises ForeignError when it lies elsewhere, also through a link."""
    path = folder / name
    if path == folder or not path.resolve().is_relative_to(folder.resolve()):
        raise ForeignError(f"{name!r} is outside of {folder}")
    return path


def without(facts: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the facts without one key."""
    return {name: fact for name, fact in facts.items() if name != key}
