"""Converts a table's Arrow schema to the column schema of MLflow's dataset page."""

from typing import Any, Final

import pyarrow as pa

_TYPES: Final = {"string": "string", "int32": "integer", "int64": "long", "float": "float", "double": "double", "bool": "boolean"}


def dataset_columns(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return a schema in MLflow's format: name, type and `required`; raises ValueError for a type that MLflow lacks.

    >>> dataset_columns(pa.schema([pa.field("fen", pa.string(), nullable=False), pa.field("values", pa.list_(pa.float32()))]))[1]
    {'name': 'values', 'type': 'array', 'items': {'type': 'float'}, 'required': False}
    """
    return [{"name": field.name, **_type(field.type), "required": not field.nullable} for field in schema]


def _type(kind: Any) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"type": "array", "items": _type(kind.value_type)}
    if str(kind) not in _TYPES:
        raise ValueError(f"MLflow's dataset schema has no type for a column of type {kind}")
    return {"type": _TYPES[str(kind)]}
