"""What begins small: the KL coefficient, never at 0, and those parts of the reward that ask for chess."""

from grpo.settings.language import LanguageConfig


def kl_fraction(config: LanguageConfig, num_steps: int) -> float:
    """Return the fraction of its coefficient that the KL term has after so many steps of this run: a line from above 0 to 1."""
    return min(1.0, (num_steps + 1) / max(1, config.kl_warmup_steps))


def content_fraction(config: LanguageConfig, num_steps: int) -> float:
    """Return the fraction of their weights that all parts but structure and parsing have after so many steps: a line from above 0 to 1."""
    return min(1.0, (num_steps + 1) / max(1, config.reward_warmup_steps))
