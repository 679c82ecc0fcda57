"""Opens the policy of a folder as a competitor, whatever its kind."""

from importlib import import_module
from pathlib import Path

import torch

from grpo.policy.files import policy_kind
from grpo.settings.tree import Settings
from steps.common.policies.competitor import Competitor
from steps.run.kinds import PARTS


def open_policy(folder: Path, device: torch.device, *, settings: Settings | None = None) -> Competitor:
    """Return the policy of a folder.

    Args:
        folder: Folder with the policy's files.
        device: Device on which the policy computes.
        settings: Settings of the run, of which a kind reads its own section; None for the settings that the policy was saved with.

    Raises CorruptError or IncompatibleError if the files do not make a policy, PlainError if packages of its kind are missing.
    """
    competitor: Competitor = import_module(PARTS[policy_kind(folder)].competitor).open_competitor(folder, device, settings)
    return competitor
