"""Policies as games and measurements meet them, whatever their kind."""

from pathlib import Path

import torch

from grpo.policy.files import LANGUAGE, policy_kind
from grpo.policy.policy import NetworkPolicy
from grpo.settings.language import LanguageConfig
from steps.common.policies.competitor import Competitor
from steps.common.policies.network import NetworkCompetitor


def open_policy(folder: Path, device: torch.device, *, rules: LanguageConfig | None = None) -> Competitor:
    """Return the policy of a folder, whatever its kind.

    Args:
        folder: with its files.
        device: where it computes.
        rules: how often a language model is asked in games, and on how much it is judged; None goes by what it was saved with.

    Raises CorruptError or IncompatibleError when its files do not make one, PlainError when the packages are missing that its kind needs.
    """
    if policy_kind(folder) == LANGUAGE:
        # Transformers takes seconds to import.
        from grpo.language.model.policy import LanguagePolicy
        from steps.common.policies.language import LanguageCompetitor

        return LanguageCompetitor(LanguagePolicy.load(folder, device), rules)
    return NetworkCompetitor(NetworkPolicy.load(folder, device))
