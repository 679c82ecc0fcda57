"""`docs/diagnosis.md`, printed from the table of findings and the names of quantities."""

from grpo.diagnosis.findings import ENTRIES
from grpo.diagnosis.quantities import names_of

_HEAD = """# Diagnosis

Printed from `grpo/diagnosis/` by `python -m grpo.diagnosis.page > docs/diagnosis.md`; a test holds them together.

A run's history in, named findings out: each with its evidence (numbers and steps), its true cause, and a remedy.

```
chess-grpo diagnose last                                  # a run of ours: its number, an MLflow id, `last`, `peak` or `champion`
chess-grpo diagnose --history losses.csv rewards.csv --evals evals.csv --settings settings.json
chess-grpo diagnose --history wandb_export.csv --json
```

Exit code 0: healthy (notes are no illness); 1: something was found; 2: the input cannot be used, and the message says why.

The verdict comes from the history alone. Settings sharpen evidence and remedy, which then names the run's own settings with their values;
what a settings file recorded of the run itself, under `final` (last values) and `ranges` (lowest and highest), counts as history. A level
at the beginning or the end is the median of the first or last tenth of the rows, at most 20 of them, so that a few odd rows are no
finding. The same rules look at a run of ours while it trains, at every tenth step from the twentieth on: a finding is told once in the
log, is drawn on the card, ends up in `findings.json` and in the tag `chess_grpo.findings`.

What a single row shows (a KL at step 0, one NaN) is not seen when that row is left out; all else stands with every third row, and with
noise of 5 %, for histories of 30 rows or more that are not next to a threshold.

## What is read

CSV files (parted by comma, semicolon or tab), several of one run: a column of steps (or of windows: `step_from`, `step_to`) and columns
with some cells empty; statistics instead of a series (`metric, mean, min, max, first, last`); one row a value (`key, value, step`, as
MLflow exports); W&B's exports (`_step`, or `run - metric` columns). An empty cell was not recorded; a cell that says nan was, and is not
finite. `--evals` is a table of `step`, `score` (a win 1, a draw 0.5, the mean) and `games`. `--settings` is a JSON object of settings, or
one with those of several runs, of which the one is taken whose name a history file has. Columns are known by these names, whatever
section stands before them (`train/`, `actor/`, ...):

| quantity | our metric | names of others |
| --- | --- | --- |
"""


def diagnosis_page() -> str:
    """Return the page."""
    rows = "\n".join(f"| {quantity} | {_code(ours)} | {_code(others)} |" for quantity, ours, others in names_of())
    findings = "\n".join(
        f"### {name}\n\n*{entry.severity.value}* - {entry.meaning}\n\n- **Seen by**: {entry.seen}\n- **Cause**: {entry.cause}\n"
        f"- **Remedy**: {entry.remedy}\n" + (f"- **In a run of ours**: {entry.ours}\n" if entry.ours else "")
        for name, entry in ENTRIES.items()
    )
    return f"{_HEAD}{rows}\n\n## Findings\n\n{findings}"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


if __name__ == "__main__":
    print(diagnosis_page(), end="")
