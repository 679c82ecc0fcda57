"""UCI options of a served policy: temperature and MultiPV."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from grpo.board import MAX_LEGAL_MOVES

MIN_TEMPERATURE: Final = 0.01  # A tiny temperature would make logits overflow.
MAX_TEMPERATURE: Final = 10.0
BEST_MOVE: Final = 0.0  # Temperature that stands for the most likely move.
# Declared only because chess programs often set these options.
_WITHOUT_EFFECT: Final = (
    "option name Hash type spin default 1 min 1 max 33554432",
    "option name Threads type spin default 1 min 1 max 1024",
    "option name Ponder type check default false",
)


class UciError(ValueError):
    """An unusable option value, position or move. The message is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UciOptions:
    """Raises UciError for a number out of range."""

    temperature: float  # `BEST_MOVE`, or the sampling temperature.
    multipv: int = 1  # Number of moves to show.
    has_lines: bool = True  # Whether the policy can show several moves (MultiPV).

    def __post_init__(self) -> None:
        if not (self.temperature == BEST_MOVE or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise UciError(f"Temperature must be {BEST_MOVE:g} (best move), or between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}")
        if not 1 <= self.multipv <= MAX_LEGAL_MOVES:
            raise UciError(f"MultiPV must be between 1 and {MAX_LEGAL_MOVES}")

    def declarations(self) -> list[str]:
        """Return the `option` lines, with the current values as defaults."""
        multipv = f"option name MultiPV type spin default {self.multipv} min 1 max {MAX_LEGAL_MOVES}"
        # UCI's `spin` takes only integers, so Temperature is a `string`.
        return [f"option name Temperature type string default {self.temperature:g}", *[multipv] * self.has_lines, *_WITHOUT_EFFECT]

    def with_option(self, words: Sequence[str]) -> "UciOptions":
        """Return the options after `setoption WORDS`; unknown names are ignored. Raises UciError."""
        name, _, value = " ".join(words).removeprefix("name ").partition(" value ")
        parse = {"temperature": float, "multipv": int}.get(name.lower())
        if parse is None or (parse is int and not self.has_lines):
            return self
        try:
            number = parse(value.replace(",", "."))  # Accept a decimal comma.
        except ValueError:
            raise UciError(f"{name} needs a {'whole ' if parse is int else ''}number, not {value!a}") from None
        return replace(self, **{name.lower(): number})
