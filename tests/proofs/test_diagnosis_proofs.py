"""The diagnosis has the errors that its page states: found at least 95 of 100 sick draws of 200 rows and more, at most 2 false alarms."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
from made_histories import REPORTING, measure, table  # noqa: E402

PAGE = ROOT / "docs" / "troubleshooting.md"


@pytest.mark.prove
def test_draws_of_the_reporting_seed_are_found_and_the_page_has_the_table() -> None:
    rows = measure(REPORTING)
    sick, healthy = ([row for row in rows if bool(row.finding) is is_sick] for is_sick in (True, False))
    assert sum(row.share(200) for row in sick) / len(sick) >= 0.95
    assert sum(row.share(40) for row in healthy) / len(healthy) <= 0.02
    for line in table(rows).splitlines():
        kind = line.partition(" | ")[0]
        shown = next(each for each in PAGE.read_text(encoding="utf-8").splitlines() if each.startswith(f"{kind} | ") or each == line)
        numbers, on_page = (list(map(float, re.findall(r"[\d.]+(?=%)", each))) for each in (line, shown))
        assert numbers == pytest.approx(on_page, abs=2), kind  # Another version of numpy may draw other numbers.
