"""Checks of data from outside: from a tracking server, a bucket, a manifest or a policy's folder.

No id, hash or file name may lead out of the store (the folder of all steps' outputs). A manifest is a JSON file in an output's folder, with
the hash of each file.
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
    """Data from outside has a wrong form."""


def _relative(name: str) -> str:
    if not name.isprintable() or "\\" in name or len(name) > _LONGEST_NAME or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"not a path of at most {_LONGEST_NAME:,} printable characters without a backslash or an empty, `.` or `..` part")
    return name


ID_PATTERN: Final = "[A-Za-z0-9_][A-Za-z0-9_-]{0,127}"
Id = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN}$")]
"""Name of a run or preset."""
VersionHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{24}$")]
"""Version of a step's output: 24 hex digits of a hash of all that the output depends on."""
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 as hex."""
FileName = Annotated[str, AfterValidator(_relative)]
FILES: Final = TypeAdapter(dict[FileName, Hash], config=ConfigDict(strict=True))

STRICT: Final = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
"""Makes a TypedDict refuse unknown keys, other types, NaN and infinity."""


@with_config(ConfigDict(strict=True))
class ManifestForm(TypedDict):
    """`output_hash` covers only `files`. The files in `aside` differ between equal runs, for example by times. Other keys are allowed."""

    files: dict[FileName, Hash]
    aside: dict[FileName, Hash]
    output_hash: Hash


MANIFEST_FORM: Final = TypeAdapter(ManifestForm)


def checked(form: TypeAdapter[_T], value: object, source: object) -> _T:
    """Return `value` without keys that the form does not name. Raises ForeignError, which names `source`, for another form."""
    try:
        return form.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ForeignError(f"{source} was not written by this code ({f'{where}: ' if where else ''}{first['msg']})") from None


def inside(folder: Path, name: str) -> Path:
    """Return `folder / name`. Raises ForeignError unless the path, resolved, is below the folder."""
    path = folder / name
    if folder.resolve() not in path.resolve().parents:
        raise ForeignError(f"{name!r} is outside of {folder}")
    return path


def without(facts: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name != key}
