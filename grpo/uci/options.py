"""What a chess program may set in the UCI engine: names, types and limits as they are declared, and nothing believed unchecked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from grpo.board.actions import MAX_LEGAL_MOVES

MIN_TEMPERATURE: Final = 0.01
"""Below it, quotients of logits leave the range of floats."""
MAX_TEMPERATURE: Final = 10.0
BEST_MOVE: Final = 0.0
"""The temperature at which the likeliest move is played."""
CHANCE_SEED: Final = -1
"""The seed that stands for another one each time the engine starts."""
_Number = TypeVar("_Number", int, float)
_MAX_SEED: Final = 2**31 - 1  # Spins are 32-bit integers in many programs.
# Declared because some programs set them without asking. A policy has no use for them: any value a program may like is taken.
_WITHOUT_EFFECT: Final = {
    "hash": "option name Hash type spin default 1 min 1 max 33554432",
    "threads": "option name Threads type spin default 1 min 1 max 1024",
    "ponder": "option name Ponder type check default false",
}


class OptionError(ValueError):
    """A value is not one that was declared; the message is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UciOptions:
    """What decides on the move, besides the policy."""

    temperature: float
    """`BEST_MOVE`, or the temperature at which moves are drawn."""
    multipv: int = 1
    """How many moves are shown."""
    seed: int = 0
    """Of the moves drawn; `CHANCE_SEED` for another one each time."""
    has_lines: bool = True
    """Whether there are several moves to show; else the option MultiPV is neither declared nor heeded."""

    def __post_init__(self) -> None:
        if not (self.temperature == BEST_MOVE or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise OptionError(f"Temperature must be {BEST_MOVE:g} (best move), or between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}")
        if not 1 <= self.multipv <= MAX_LEGAL_MOVES:
            raise OptionError(f"MultiPV must be between 1 and {MAX_LEGAL_MOVES}")
        if not CHANCE_SEED <= self.seed <= _MAX_SEED:
            raise OptionError(f"Seed must be between {CHANCE_SEED} (another one each time) and {_MAX_SEED}")

    def declarations(self) -> list[str]:
        """Return the lines that tell a chess program what it may set, with these values as the defaults."""
        return [
            # No spin, which would be an integer, and no chess program shows more than a text field for a fraction.
            f"option name Temperature type string default {self.temperature:g}",
            *([f"option name MultiPV type spin default {self.multipv} min 1 max {MAX_LEGAL_MOVES}"] if self.has_lines else []),
            f"option name Seed type spin default {self.seed} min {CHANCE_SEED} max {_MAX_SEED}",
            *_WITHOUT_EFFECT.values(),
        ]

    def with_option(self, words: Sequence[str]) -> "UciOptions":
        """Return the options after `setoption` with these words behind it; names are case-insensitive, unknown ones change nothing.

        Raises OptionError when the value is not one that was declared.
        """
        name, value = _name_and_value(words)
        match name.lower():
            case "temperature":
                return replace(self, temperature=_number(float, name, value))
            case "multipv" if self.has_lines:
                return replace(self, multipv=_number(int, name, value))
            case "seed":
                return replace(self, seed=_number(int, name, value))
            case "uci_chess960" if value.lower() == "true":
                raise OptionError("UCI_Chess960 is not supported: the policy knows standard castling only")
            case _:
                return self


def _name_and_value(words: Sequence[str]) -> tuple[str, str]:
    rest = list(words)
    if rest[:1] != ["name"]:
        raise OptionError("setoption: write `setoption name NAME value VALUE`")
    end = rest.index("value") if "value" in rest else len(rest)
    return " ".join(rest[1:end]), " ".join(rest[end + 1 :])


def _number(kind: type[_Number], name: str, value: str) -> _Number:
    try:
        return kind(value.replace(",", "."))  # As typed where the comma is the decimal mark.
    except ValueError:
        raise OptionError(f"{name} is no {'whole number' if kind is int else 'number'}") from None
