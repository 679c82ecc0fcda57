"""Names of runs and charts, which MLflow sorts by name, and descriptions in Markdown."""

from collections.abc import Mapping
from typing import Final

from steps import STEPS
from steps.run.records import Attempt
from steps.run.step import Step

# Metric -> title of its chart; numbers set the order.
MAIN_CURVES: Final[Mapping[str, str]] = {
    "grpo/reward_gain": "1 reward gain",
    "language/reward_mean": "1 reward mean",
    "heldout/regret_best": "2 held-out regret",
    "grpo/entropy": "3 entropy",
    "language/entropy": "3 token entropy",
    "grpo/kl_reference": "4 KL",
    "language/kl_reference": "4 token KL",
    "control/learning_rate": "5 learning rate",
    "heldout/parse_rate": "6 parse rate",
}


def tracked_name(metric: str) -> str:
    """Return a metric's name in MLflow, which groups charts by the text before the slash.

    >>> tracked_name("grpo/entropy"), tracked_name("ladder/rating")
    ('curves/3 entropy', 'ladder/rating')
    """
    return f"curves/{MAIN_CURVES[metric]}" if metric in MAIN_CURVES else metric


def run_name(step: str, part: str = "") -> str:
    """Return the name of a step's run in MLflow.

    >>> run_name("finetune"), run_name("confirm", "2 of 2")
    ('07 finetune', '09 confirm 2 of 2')
    """
    return f"{STEPS.index(step):02d} {step} {part}".rstrip()


def step_note(step: Step, attempt: Attempt) -> str:
    error = "".join(f"> {line}\n" for line in attempt.error.splitlines())
    return f"**{attempt.status.capitalize()}**\n\n{error}\n{step.says}" if error else step.says
