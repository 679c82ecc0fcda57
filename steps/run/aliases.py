"""What the registry's policies are called: in its aliases, on the command line, and as folders of the output of `select`."""

from typing import Final

CHAMPION: Final = "champion"
"""The one to play: shown to be better than its own start, and than the champion before it."""
PEAK: Final = "peak"
"""The checkpoint to resume from: the best lower bound of its run."""
ALIASES: Final = (CHAMPION, PEAK)
PRETRAINED_STEP: Final = 0
"""The step of the pretrained policy, before the first of GRPO."""
