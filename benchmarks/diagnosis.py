"""Confusion table of the diagnosis on made logs of other trainers and of ours.

python benchmarks/diagnosis.py --seeds 0 1 2 3 [--kept-back] [--failures]    # prints a Markdown table; a minute for 4 seeds

Thresholds were set on seeds below 100 and the styles that are not in `trainer_logs.KEPT_BACK`; docs/diagnosis.md reports the rest.
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from trainer_logs import HEALTHY, KEPT_BACK, SICK, Kind, Style, styles_of, write_log

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.findings import Severity
from grpo.diagnosis.reading import read_run_history


def findings_of(kind: Kind, style: Style, seed: int) -> set[str]:
    """Return the names of all findings that are not notes."""
    with tempfile.TemporaryDirectory() as folder:
        tables, evaluations = write_log(Path(folder), kind, style, seed)
        found = diagnose(read_run_history(tables, evals=evaluations)).findings
    return {finding.name for finding in found if finding.severity != Severity.NOTE}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Confusion table of the diagnosis on made logs.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--kept-back", action="store_true", help="the styles that no rule was fitted on alone")
    parser.add_argument("--fitted", action="store_true", help="only the styles on which thresholds were set")
    parser.add_argument("--failures", action="store_true", help="list each history that is named wrongly")
    given = parser.parse_args()
    print("| kind | histories | named rightly | what else was said (histories) |\n| --- | --- | --- | --- |")
    counts: Counter[str] = Counter()
    for kind in (*HEALTHY, *SICK):
        styles = [style for style in styles_of(kind) if not (given.kept_back and style.name not in KEPT_BACK)]
        styles = [style for style in styles if not (given.fitted and style.name in KEPT_BACK)]
        if not styles:
            continue
        others: Counter[str] = Counter()
        right = total = 0
        for style in styles:
            for seed in given.seeds:
                found = findings_of(kind, style, seed)
                is_right = bool(found & kind.expected) if kind.expected else not found
                right, total = right + is_right, total + 1
                others.update(found - kind.expected or ({"healthy"} if not found and kind.expected else set()))
                if given.failures and not is_right:
                    print(f"  {kind.name} / {style.name} / seed {seed}: {', '.join(sorted(found)) or 'healthy'}")
        side = "sick" if kind.expected else "healthy"
        counts[f"{side} kinds"] += 1
        counts[f"{side} always right"] += right == total
        counts[f"{side} mostly right"] += right >= 0.9 * total
        counts[f"{side} histories"] += total
        counts[f"{side} histories right"] += right
        said = ", ".join(f"{name} {number}" for name, number in others.most_common(6)) or "-"
        print(f"| {kind.name} ({', '.join(sorted(kind.expected)) or 'healthy'}) | {total} | {right} | {said} |", flush=True)
    print()
    for side in ("healthy", "sick"):
        number = {name.removeprefix(f"{side} "): count for name, count in counts.items() if name.startswith(side)}
        print(
            f"- {side}: {number['kinds']} kinds, {number['always right']} always right, {number['mostly right']} in nine of ten histories"
            f" or more; {number['histories right']} of {number['histories']} histories"
        )


if __name__ == "__main__":
    main()
