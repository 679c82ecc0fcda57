"""Descriptions (notes) on MLflow's pages: of the experiment, of runs while they run and at their end, and of registered policies.

They are short Markdown texts: MLflow stores 5,000 characters of an experiment's description and 8,000 of a run's.
"""

import platform
from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.metrics.table import METRICS, Better
from grpo.policy.files import LANGUAGE, NETWORK
from steps.runtime.commands import FLOW_FILE, resume_command
from steps.runtime.machine import Machine
from steps.step_io.results import Results
from steps.step_io.results_text import summary
from steps.tracking.launch import Launch
from steps.tracking.step_notes import STEP_NOTES, findings_text, run_name

_MAX_LENGTH: Final = 7_500
_OWN_LINE: Final = ("|", "- ", "#", "```", ">")
GOALS: Final[Mapping[str, str]] = {
    NETWORK: "Teach a network chess by imitation, make it stronger by GRPO against Stockfish's values of all moves, and show by fresh games"
    " that it became stronger, or say that this was not shown.",
    LANGUAGE: "Teach a language model chess as text by cloning answers, make it stronger by GRPO with graded rewards from Stockfish's"
    " values of all moves, and show by fresh games that it became stronger, or say that this was not shown.",
}
"""Kind of policy -> the goal of a run."""


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


MODEL_NOTE: Final = flowing("""\
Chess policies without search: networks that give every legal move of a position a probability, and language models that write their moves.

- `champion`: the one to play. It was shown by fresh games to be better than its own start, and than the champion before it.
- `peak`: the one to resume from; of the runs from one initial policy the one with the best lower bound.

Play it: `chess-grpo uci --model champion` in any chess program. Measure it: `chess-grpo match champion stockfish:nodes=50`.
Load it in Python: `mlflow.pyfunc.load_model("models:/chess-policy@champion").predict([fen])`.
Serve it: `mlflow models serve -m models:/chess-policy@champion`. Export it: `chess-grpo export champion`.
A version's source run has the games that selected it; `chess_grpo.policy_step` is 0 for a policy of behavior cloning without GRPO.
""")


def experiment_note() -> str:
    """Return the experiment's description: what it is, how to read it, and the groups of metrics with their units."""
    groups: dict[str, list[str]] = {}
    for spec in METRICS.values():
        groups.setdefault(spec.name.partition("/")[0], []).append(spec.unit)
    rows = "\n".join(f"| `{group}/` | {len(units)} | {', '.join(dict.fromkeys(units))} |" for group, units in groups.items())
    heads = dict.fromkeys(name for note in STEP_NOTES.values() for name in note.headlines)
    heads |= dict.fromkeys(name for name in METRICS if name.startswith("run/"))
    shown = "\n".join(f"| `{name}` | {METRICS[name].unit} | {_better(name)} |" for name in heads)
    return flowing(f"""{GOALS[NETWORK]}

**How to read it.** A run of the pipeline is one parent run; its name and its page begin with the verdict. The steps are its children,
numbered in their order. A parent has the main curves of training, the headline numbers and the settings that runs are compared by. All
curves are in `07 finetune`, the games that decided in `10 select`, the results with their intervals in `11 report`.

**Headlines**:

| metric | unit | better |
| --- | --- | --- |
{shown}

**Groups of metrics**; `docs/metrics.md` says what each means:

| group | metrics | units |
| --- | --- | --- |
{rows}
""")


def source_tags(code: Mapping[str, Any], machine: Machine) -> dict[str, str]:
    """Return the tags that MLflow shows as a run's source."""
    kind = "JOB" if machine.is_container else "LOCAL"
    return {"mlflow.source.name": FLOW_FILE, "mlflow.source.type": kind, "mlflow.source.git.commit": str(code["commit"])}


def head(
    *,
    launch: Launch,
    words: Sequence[str],
    origin: str,
    machine: Machine,
    device: str,
    engine: str,
    code: Mapping[str, Any],
    metaflow_run: str,
    kind: str = NETWORK,
) -> str:
    """Return the constant part of a run's description: goal, command, differences from the preset, and machine.

    Args:
        launch: preset and differences.
        words: arguments after `run` in the command.
        origin: the run and step that it resumes from, as text; empty for a new training.
        machine: the machine that starts it.
        device: the torch device.
        engine: the engine that evaluates moves.
        code: commit and dirty flag of the checkout.
        metaflow_run: Metaflow's run id.
        kind: kind of policy.
    """
    goal = f"Resume from {origin}: {GOALS[kind][0].lower()}{GOALS[kind][1:]}" if origin else GOALS[kind]
    rows = "\n".join(f"| `{name}` | {value} |" for name, value in launch.differences.items())
    differences = f"Settings that differ from the preset `{launch.preset}`:\n\n| setting | here |\n| --- | --- |\n{rows}"
    where = "a container" if machine.is_container else f"one machine ({platform.system()}, {platform.machine()})"
    changed = " with uncommitted changes" if code["is_dirty"] else ""
    return f"""## Configuration

**Goal.** {goal}

**Command.**

```
{launch.command(words)}
```

{differences if rows else f"All settings are those of the preset `{launch.preset}`."}

**Where.** Metaflow run {metaflow_run}, on {where}: {device}; {engine}; commit `{str(code["commit"])[:12]}`{changed}.
The artifacts have the settings: all in `settings.json`, the differences from the preset in `settings.toml`."""


def begun(head: str, *, metaflow_run: str, step: str = "") -> str:
    """Return the description of a running run, with its current step if any."""
    at = f"at `{step}`, step {list(STEP_NOTES).index(step) + 1} of {len(STEP_NOTES)}" if step in STEP_NOTES else "starting"
    text = f"**Running**, {at}. If no process is running any more, it was killed: `{resume_command(metaflow_run)}` resumes it."
    return _page(text, head)


def failed(head: str, *, metaflow_run: str, step: str, why: str) -> str:
    """Return the description of a run in which a step has failed."""
    text = f"""# Failed in `{step}`

{_quoted(why)}

Finished steps are saved. Fix the cause and resume: `{resume_command(metaflow_run)}`. With other
settings start a new run by the command below; it reuses the steps that they do not change."""
    return _page(text, head)


def ended(head: str, results: Results, *, places: Mapping[str, str]) -> str:
    """Return the description of a finished run, which begins with its verdict.

    Args:
        head: from `head`.
        results: of the run.
        places: name -> location of outputs.
    """
    found = "" if results["findings"] is None else f"{findings_text(results['findings'])}\n"
    where = "\n".join(f"- {what}: `{place}`" for what, place in places.items())
    text = f"""# Verdict: {results["decision"]["verdict"]}

{summary(results)}
{found}
{where}
- Report, results and model card: the artifacts of the child run `{run_name("report")}`"""
    return _page(text, head)


def version_note(decision: Mapping[str, Any]) -> str:
    """Return the description of a run's versions in the model registry: a short model card."""
    return flowing(f"""Verdict of its run: **{decision["verdict"]}**. {decision["sentence"]}

Ratings on the ladder, by games on the same openings:

- step {decision["candidate_step"]:,}, the candidate: {decision["ladder"]["text"]}
- step 0, its start: {decision["ladder_initial"]["text"]}

Other steps were not rated. The policy plays without search and without a clock. Elo is on this ladder, not a human rating. The full
model card is with its run, in `{run_name("report")}`.""")


def _better(name: str) -> str:
    better = METRICS[name].better
    return "" if better is Better.NEITHER else str(better)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _page(text: str, head: str) -> str:
    page = flowing(f"{text}\n\n{head}")
    return page if len(page) <= _MAX_LENGTH else f"{page[:_MAX_LENGTH]}\n\n(cut here)"
