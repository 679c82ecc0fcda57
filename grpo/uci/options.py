"""UCI options of the served policy: temperature and MultiPV, with their declarations and checks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from grpo.board.actions import MAX_LEGAL_MOVES

MIN_TEMPERATURE: Final = 0.01
"""Below it, logits divided by the temperature overflow."""
MAX_TEMPERATURE: Final = 10.0
BEST_MOVE: Final = 0.0
"""The temperature at which the most likely move is played."""
# Declared because some chess programs set them without checking; a policy ignores their values.
_WITHOUT_EFFECT: Final = (
    "option name Hash type spin default 1 min 1 max 33554432",
    "option name Threads type spin default 1 min 1 max 1024",
    "option name Ponder type check default false",
)


class UciError(ValueError):
    """An option's value is outside its declared range, or a position is none of standard chess; the message is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UciOptions:
    """Current values of the UCI options."""

    temperature: float
    """`BEST_MOVE`, or the temperature at which moves are sampled."""
    multipv: int = 1
    """Number of moves to show."""
    has_lines: bool = True
    """Whether the policy can show several moves; otherwise the option MultiPV is neither declared nor used."""

    def __post_init__(self) -> None:
        if not (self.temperature == BEST_MOVE or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise UciError(f"Temperature must be {BEST_MOVE:g} (best move), or between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}")
        if not 1 <= self.multipv <= MAX_LEGAL_MOVES:
            raise UciError(f"MultiPV must be between 1 and {MAX_LEGAL_MOVES}")

    def declarations(self) -> list[str]:
        """Return the `option` lines that declare the options to a chess program, with these values as defaults."""
        multipv = f"option name MultiPV type spin default {self.multipv} min 1 max {MAX_LEGAL_MOVES}"
        # UCI has no type for fractions: `spin` is an integer.
        return [f"option name Temperature type string default {self.temperature:g}", *[multipv] * self.has_lines, *_WITHOUT_EFFECT]

    def with_option(self, words: Sequence[str]) -> "UciOptions":
        """Return the options after `setoption` with these arguments; names are case-insensitive, and unknown ones are ignored.

        Raises UciError if the value is outside the declared range.
        """
        name, _, value = " ".join(words).removeprefix("name ").partition(" value ")
        parse = {"temperature": float, "multipv": int}.get(name.lower())
        if parse is None or (parse is int and not self.has_lines):
            return self
        try:
            number = parse(value.replace(",", "."))  # Accept a decimal comma.
        except ValueError:
            raise UciError(f"{name} is no number, or no whole one: {value!a}") from None
        return replace(self, **{name.lower(): number})
