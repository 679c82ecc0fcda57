"""Which kinds of policies there are."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from steps.kinds.kind import PolicyKind
from steps.kinds.language import LANGUAGE_KIND
from steps.kinds.network import NETWORK_KIND

if TYPE_CHECKING:
    from grpo.settings.tree import Settings

KINDS: Final[Mapping[str, PolicyKind]] = {kind.name: kind for kind in (NETWORK_KIND, LANGUAGE_KIND)}
"""By `policy.kind`; of a policy's folder `grpo.policy.files.policy_kind` says it."""


def kind_of(settings: "Settings") -> PolicyKind:
    """Return the kind of policy that a run trains."""
    return KINDS[settings.policy.kind]
