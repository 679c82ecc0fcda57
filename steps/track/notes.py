"""What MLflow's pages say: names of runs and of charts, by which it sorts them, and descriptions of runs in Markdown."""

from collections.abc import Mapping
from typing import Final

from steps import STEPS
from steps.run.commands import resume_command
from steps.run.records import Attempt, Run
from steps.run.step import Step

MAIN_CURVES: Final[Mapping[str, str]] = {
    "grpo/reward_gain": "1 reward gain",
    "language/reward_mean": "1 reward mean",
    "heldout/regret_best": "2 held-out regret",
    "heldout/parse_rate": "3 parse rate",
    "grpo/entropy": "4 entropy",
    "language/entropy": "4 token entropy",
    "grpo/kl_reference": "5 KL",
    "language/kl_reference": "5 token KL",
    "control/learning_rate": "6 learning rate",
}
"""Metrics that say whether a fine-tuning learns, on the pages of `finetune` and of the whole run -> title of the chart."""


def tracked_name(metric: str) -> str:
    """Return the name of a metric in MLflow, which groups charts by what precedes the slash: the main curves are one group.

    >>> tracked_name("grpo/entropy"), tracked_name("ladder/rating")
    ('curves/4 entropy', 'ladder/rating')
    """
    return f"curves/{MAIN_CURVES[metric]}" if metric in MAIN_CURVES else metric


def run_name(step: str, part: str = "") -> str:
    """Return a child run's name, by which the UI sorts them in order; parallel tasks of a step are told apart by their part.

    >>> run_name("finetune"), run_name("confirm", "2 of 2")
    ('07 finetune', '09 confirm 2 of 2')
    """
    return f"{STEPS.index(step):02d} {step} {part}".rstrip()


def run_note(run: Run, verdict: str) -> str:
    """Return the description of a run: its verdict or what became of it, and how it was started.

    Args:
        run: as it is now.
        verdict: beginning of its report, in Markdown; empty while there is none.
    """
    resume = resume_command(run.name)
    if run.status == "running":
        at = run.attempts[-1].step if run.attempts else ""
        where = f"at `{at}`, step {STEPS.index(at)} of {len(STEPS) - 2}" if at else "starting"
        found = f"**Running**, {where}. If no process is running any more, it was killed: `{resume}` resumes it."
    elif run.status != "finished":
        where = f"{run.status.capitalize()} in `{run.failed_step}`"
        found = f"# {where}\n\n{_quoted(run.error or 'Its process is gone.')}\n\nFinished steps are saved. It goes on by `{resume}`."
    else:
        found = verdict or "**Finished**."
    return f"{found}\n\n{run.facts['head']}"


def step_note(step: Step, attempt: Attempt) -> str:
    """Return a child run's description: what the step does, and why it failed or was killed if it was."""
    parts = [f"**{attempt.status.capitalize()}**", _quoted(attempt.error)] if attempt.error else []
    return "\n\n".join(filter(None, (*parts, step.says)))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())
