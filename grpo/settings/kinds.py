"""The kinds of policies, one row each: the values of `policy.kind`, and their properties.

The two kinds are a chess network and a language model. `steps.run.kinds` has the parts of the pipeline that differ by kind. A new kind
needs its own files, a row in each of the two tables, and a section in `grpo.settings.tree` if the kind has its own settings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from grpo.settings.grpo import GrpoConfig
from grpo.settings.language import LANGUAGE_DEFAULTS, refuse_for_language

NETWORK: Final = "network"
LANGUAGE: Final = "language"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of policy.

    A step's version is a hash of all that the step's output depends on (`steps.run.code`). It contains the `repr` of the kind. So the
    `repr` shows only the fields that an output can depend on.
    """

    module: str
    """Dotted name of a module with three functions; imported when needed, because torch and transformers take seconds to import.

    `check(settings)` returns a line for the table of checks before a run; raises a PlainError if the run cannot start.
    `start_hashes(settings)` returns, by name, hashes of initial files that the settings do not determine, such as a given model's.
    `load_ranker(folder, device)` returns a function of a board with a legal move. The function returns two lists: moves in UCI, the
    likeliest first, and their probabilities. A kind without probabilities returns one move or none, and an empty second list.
    """
    has_probabilities: bool
    """Whether the policy gives every legal move a probability."""
    section: str = ""
    """Section of the settings that this kind alone reads; empty for none."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Section -> key -> default of this kind, if it differs from the default in the section's class."""
    refuse: Callable[[Any, GrpoConfig, float | None], None] | None = field(default=None, repr=False)
    """Raises ValueError for settings that contradict this kind. Takes the kind's section (None without a section), `[grpo]`, and the
    learning rate of imitation (None without imitation)."""
    can_skip_imitation: bool = field(default=False, repr=False)
    """Whether `pretrain.num_steps` may be 0."""
    packages: tuple[str, ...] = field(default=(), repr=False)
    """Packages that this kind needs to play, besides the packages of the networks."""


KINDS: Final[dict[str, Kind]] = {
    NETWORK: Kind(module="grpo.policy.kind", has_probabilities=True),
    LANGUAGE: Kind(
        module="grpo.language.kind",
        has_probabilities=False,
        section="language",
        defaults=LANGUAGE_DEFAULTS,
        refuse=refuse_for_language,
        can_skip_imitation=True,
        packages=("transformers",),
    ),
}


def known_kind(name: str) -> str:
    """Return the name. Raises ValueError for an unknown kind."""
    if name not in KINDS:
        raise ValueError(f"input should be {' or '.join(map(repr, KINDS))}")
    return name
