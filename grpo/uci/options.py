"""UCI options of the served policy: temperature, MultiPV and seed, with their declarations and checks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from grpo.board.actions import MAX_LEGAL_MOVES

MIN_TEMPERATURE: Final = 0.01
"""Below it, logits divided by the temperature overflow."""
MAX_TEMPERATURE: Final = 10.0
BEST_MOVE: Final = 0.0
"""The temperature at which the most likely move is played."""
RANDOM_SEED: Final = -1
"""The value of the option Seed that means a new random seed at each start of the engine."""
_MAX_SEED: Final = 2**31 - 1  # Spins are 32-bit integers in many programs.
# Declared because some chess programs set them without checking; a policy ignores their values.
_WITHOUT_EFFECT: Final = (
    "option name Hash type spin default 1 min 1 max 33554432",
    "option name Threads type spin default 1 min 1 max 1024",
    "option name Ponder type check default false",
)


class OptionError(ValueError):
    """An option's value is outside its declared range; the message is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UciOptions:
    """Current values of the UCI options."""

    temperature: float
    """`BEST_MOVE`, or the temperature at which moves are sampled."""
    multipv: int = 1
    """Number of moves to show."""
    seed: int = 0
    """Seed of the sampled moves; `RANDOM_SEED` for a new one at each start."""
    has_lines: bool = True
    """Whether the policy can show several moves; otherwise the option MultiPV is neither declared nor used."""

    def __post_init__(self) -> None:
        if not (self.temperature == BEST_MOVE or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise OptionError(f"Temperature must be {BEST_MOVE:g} (best move), or between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}")
        if not 1 <= self.multipv <= MAX_LEGAL_MOVES:
            raise OptionError(f"MultiPV must be between 1 and {MAX_LEGAL_MOVES}")
        if not RANDOM_SEED <= self.seed <= _MAX_SEED:
            raise OptionError(f"Seed must be between {RANDOM_SEED} (another one each time) and {_MAX_SEED}")

    def declarations(self) -> list[str]:
        """Return the `option` lines that declare the options to a chess program, with these values as defaults."""
        return [
            # UCI has no type for fractions: `spin` is an integer.
            f"option name Temperature type string default {self.temperature:g}",
            *([f"option name MultiPV type spin default {self.multipv} min 1 max {MAX_LEGAL_MOVES}"] if self.has_lines else []),
            f"option name Seed type spin default {self.seed} min {RANDOM_SEED} max {_MAX_SEED}",
            *_WITHOUT_EFFECT,
        ]

    def with_option(self, words: Sequence[str]) -> "UciOptions":
        """Return the options after `setoption` with these arguments; names are case-insensitive, and unknown ones are ignored.

        Raises OptionError if the value is outside the declared range.
        """
        name, _, value = " ".join(words).removeprefix("name ").partition(" value ")
        number = value.replace(",", ".")  # Accept a decimal comma.
        try:
            match name.lower():
                case "temperature":
                    return replace(self, temperature=float(number))
                case "multipv" if self.has_lines:
                    return replace(self, multipv=int(number))
                case "seed":
                    return replace(self, seed=int(number))
        except OptionError:
            raise
        except ValueError:
            raise OptionError(f"{name} is no number, or no whole one: {value!a}") from None
        return self
