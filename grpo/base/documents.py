"""Documents: JSON files, each declared by a pydantic model."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.base.errors import PlainError
from grpo.base.files import read_json, write_json


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class DocumentError(PlainError, ValueError):
    """Another version of the code wrote the document."""


_Form = TypeVar("_Form", bound=BaseModel)


def write_document(path: Path, document: BaseModel) -> None:
    write_json(path, document.model_dump(mode="json"))


def read_document(path: Path, form: type[_Form]) -> _Form:
    """Raises OSError if the file is unreadable, CorruptError if not JSON, DocumentError if it does not match the model `form`."""
    content = read_json(path)
    try:
        return form.model_validate(content)
    except ValidationError:
        remedy = "run the flow again, or use the commit that the output's manifest names"
        raise DocumentError(f"{path} was written by another version of the code: {remedy}") from None
