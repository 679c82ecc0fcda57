"""Opens a policy of any kind as a competitor."""

from importlib import import_module
from pathlib import Path

import torch

from grpo.policy.files import policy_kind
from grpo.settings.tree import Settings
from steps.common.policies.competitor import Competitor
from steps.run.kinds import PARTS


def open_policy(folder: Path, device: torch.device, *, settings: Settings | None = None) -> Competitor:
    """Return a folder's policy. A language model reads `settings`, by default the folder's.

    Raises CorruptError or IncompatibleError for files that make no policy, PlainError for missing packages.
    """
    competitor: Competitor = import_module(PARTS[policy_kind(folder)].competitor).open_competitor(folder, device, settings)
    return competitor
