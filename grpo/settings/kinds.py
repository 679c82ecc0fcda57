"""The kinds of policies, chess network and language model: the values of `policy.kind`.

A new kind needs a row here and in `steps.run.kinds`, its own files, and a section in `grpo.settings.tree` for its own settings.
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
    """The `repr` enters the hashes by which steps find stored outputs. Fields that no output depends on have `repr=False`."""

    module: str
    """Dotted name of a module with three functions, imported when needed (slow):

    - `check(settings)` returns a line for the checks before a run; raises a PlainError if the run cannot start.
    - `start_hashes(settings)` returns name -> hash of initial files that the settings do not determine, such as a given model's.
    - `load_ranker(folder, device)` returns a function: board -> moves in UCI, likeliest first, and their probabilities. A kind without
      probabilities returns one move or none, and an empty second list.
    """
    has_probabilities: bool
    """Whether the policy gives every legal move a probability."""
    section: str = ""
    """Section of the settings for this kind alone, or ""."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Section -> key -> default, if it differs from the section's class."""
    refuse: Callable[[Any, GrpoConfig, float | None], None] | None = field(default=None, repr=False)
    """Raises ValueError for settings that contradict this kind. Takes the kind's section (or None), `[grpo]`, and the learning rate of
    imitation, `[pretrain]` (None without imitation).
    """
    can_skip_imitation: bool = field(default=False, repr=False)
    """Whether `pretrain.num_steps` may be 0."""
    packages: tuple[str, ...] = field(default=(), repr=False)
    """Packages needed to play, besides a network's."""


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
    if name not in KINDS:
        raise ValueError(f"input should be {' or '.join(map(repr, KINDS))}")
    return name
