"""What MLflow's pages say beside metrics: names and descriptions of runs and of registered policies, in Markdown."""

from typing import Final

from steps import STEPS
from steps.run.commands import resume_command
from steps.run.records import Attempt, Run
from steps.run.step import Step

_OWN_LINE: Final = ("|", "- ", "#", "```", ">")


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
    resume, error, step = resume_command(run.name), run.error, run.failed_step
    if run.status == "running":
        at = run.attempts[-1].step if run.attempts else ""
        where = f"at `{at}`, step {STEPS.index(at)} of {len(STEPS) - 2}" if at else "starting"
        found = f"**Running**, {where}. If no process is running any more, it was killed: `{resume}` resumes it."
    elif run.status != "finished":
        why = "Its process is gone." if error is None else "\n\n".join(filter(None, (error["what"], error["remedy"])))
        found = f"# {run.status.capitalize()} in `{step}`\n\n{_quoted(why)}\n\nFinished steps are saved. It goes on by `{resume}`."
    else:
        found = verdict or "**Finished**."
    return flowing(f"{found}\n\n{run.facts['head']}")


def step_note(step: Step, attempt: Attempt) -> str:
    """Return a child run's description: what the step does, and why it failed or was killed if it was."""
    error = attempt.error
    parts = [] if error is None else [f"**{attempt.status.capitalize()}**", _quoted(error["what"]), error["remedy"]]
    return flowing("\n\n".join(filter(None, (*parts, step.says))))


def flowing(markdown: str) -> str:
    r"""Return Markdown with each paragraph in one line, because MLflow renders single newlines as line breaks.

    >>> flowing("One\nsentence.\n\n- a\n- b\n  c\n\n```\nx\ny\n```")
    'One sentence.\n\n- a\n- b c\n\n```\nx\ny\n```'
    """
    lines: list[str] = []
    is_code = False
    for line in markdown.splitlines():
        joins = lines and lines[-1] and not lines[-1].startswith(("|", "#", "```", ">")) and line and not line.startswith(_OWN_LINE)
        if joins and not is_code:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        is_code ^= line.startswith("```")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())
