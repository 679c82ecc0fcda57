"""Prints `docs/diagnosis.md` from the table of findings, the names of quantities and the measured confusion table."""

from pathlib import Path
from typing import Final

from grpo.base.markdown import filled
from grpo.diagnosis.findings import ENTRIES
from grpo.diagnosis.quantities import names_of

_HEAD: Final = """# Diagnosis

Printed from `grpo/diagnosis/` by `python -m grpo.diagnosis.page > docs/diagnosis.md`; a test compares them.

The diagnosis reads a run's history and returns named findings, each with evidence (numbers and steps), cause and remedy.

```
chess-grpo diagnose last                                  # a run of ours: its number, an MLflow id, `last`, `peak` or `champion`
chess-grpo diagnose --history losses.csv rewards.csv --evals evals.csv --settings settings.json
chess-grpo diagnose --history wandb_export.csv --json
```

A diagnosis ends with the findings to begin with, from which others of the run may follow.

Exit code 0: healthy, possibly with notes; 1: there are findings; 2: the input is not usable, and the message says why.

The verdict depends only on the history. Settings make evidence and remedy more specific: the remedy then names the run's own settings
with their values. Measurements in a settings file, under `final` (last values) and `ranges` (minimum and maximum), count as history. The
level at the beginning or the end is the median of the first or last tenth of the rows, at most 20 of them, so that a few outliers are not
a finding. The same rules run during our own training, at every tenth step from the twentieth on. A finding is logged once, shown on the
card, and saved in `findings.json` and in the tag `chess_grpo.findings`.

A finding that depends on a single row (a KL at step 0, one NaN) is lost if that row is missing. All other findings also hold with every
third row and with noise of 5 %, for histories of 30 rows or more that are not close to a threshold.

## What is read

One or more CSV files of one run, separated by comma, semicolon or tab, in one of these formats: a column of steps (or windows: `step_from`,
`step_to`) with one column per metric, in which cells may be empty; statistics instead of a series (`metric, mean, min, max, first, last`);
one row per value (`key, value, step`, as MLflow exports); W&B's exports (`_step`, or `run - metric` columns, also with
evaluations in rows of their own that have `eval/global_step` or `_step` alone). A `trainer_state.json` of the Hugging Face Trainer is read
too, by its `log_history`. An empty cell means not recorded; a cell `nan` means recorded and not finite.
`--evals` is a table of `step`, `score` (mean; a win is 1, a draw 0.5) and `games`.
`--settings` is a JSON object of settings, or an object with the settings of several runs, of which the one with the name of a history file
is used. Columns are recognised by these names, with any section as prefix (`train/`, `actor/`, ...):

| quantity | our metric | names in other trainers |
| --- | --- | --- |
"""


_MEASURED: Final = """
## How often it is right

Thresholds were set on made logs of runs in the styles of TRL, Stable-Baselines3, plain CSV and our own trainer; the table is of seeds that
no threshold was set on, and of verl, OpenRLHF and W&B exports too (`KEPT_BACK` in `benchmarks/trainer_logs.py`). The makers of the logs and
of the rules are the same, so that other people's runs are harder. Printed by
`python benchmarks/diagnosis.py --seeds 4000 4001 > benchmarks/diagnosis.md`.

"""
_TABLE: Final = Path(__file__).parents[2] / "benchmarks" / "diagnosis.md"


def diagnosis_page() -> str:
    """Return the page."""
    rows = "\n".join(f"| {quantity} | {_code(ours)} | {_code(others)} |" for quantity, ours, others in names_of())
    findings = "\n".join(
        f"### {name}\n\n*{entry.severity.value}* - {entry.meaning}\n\n- **Seen by**: {entry.seen}\n- **Cause**: {entry.cause}\n"
        f"- **Remedy**: {entry.remedy}\n"
        + (f"- **In a run of ours**: {entry.ours}\n" if entry.ours else "")
        + (f"- **May lead to**: {', '.join(f'[{each}](#{each})' for each in entry.leads_to)}\n" if entry.leads_to else "")
        for name, entry in ENTRIES.items()
    )
    return filled(f"{_HEAD}{rows}\n\n## Findings\n\n{findings}{_MEASURED}{_TABLE.read_text(encoding='utf-8')}")


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


if __name__ == "__main__":
    print(diagnosis_page(), end="")
