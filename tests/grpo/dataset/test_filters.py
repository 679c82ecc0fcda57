"""Filters: each drops what it says and no more."""

from typing import Any

import pytest

from grpo.dataset.filters import dropped_by, time_control
from grpo.settings.tree import GameFilters, TimeControl

GOOD = {"WhiteElo": "2300", "BlackElo": "2400", "TimeControl": "300+3"}
LEAST = {"min_rating": 2_300}
BLITZ = {"time_controls": [TimeControl.BLITZ]}


@pytest.mark.parametrize(
    ("filters", "tags", "expected"),
    [
        ({}, {"WhiteElo": "?", "TimeControl": ""}, None),
        (LEAST, {}, None),
        (LEAST, {"WhiteElo": "2299"}, "min_rating"),
        (LEAST, {"BlackElo": "?"}, "min_rating"),
        (BLITZ, {}, None),
        (BLITZ, {"TimeControl": "600+0"}, "time_controls"),
        (BLITZ, {"TimeControl": "?"}, None),
        (LEAST | BLITZ, {"WhiteElo": "", "TimeControl": "600+0"}, "min_rating"),
    ],
)
def test_a_filter_drops_what_it_says_and_the_first_is_named(filters: dict[str, Any], tags: dict[str, str], expected: str | None) -> None:
    assert dropped_by(GOOD | tags, GameFilters(**filters)) == expected


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("15+0", TimeControl.ULTRABULLET),
        ("29+0", TimeControl.ULTRABULLET),
        ("30+0", TimeControl.BULLET),
        ("0+1", TimeControl.BULLET),
        ("179+0", TimeControl.BULLET),
        ("60+3", TimeControl.BLITZ),  # 60 + 40 * 3 = 180
        ("300+3", TimeControl.BLITZ),
        ("479", TimeControl.BLITZ),
        ("480", TimeControl.RAPID),
        ("900+14", TimeControl.RAPID),  # 1,460
        ("900+15", TimeControl.CLASSICAL),  # 1,500
        ("10+0.1", TimeControl.ULTRABULLET),
        ("40/7200:3600", TimeControl.CLASSICAL),
        ("40/300+3:60", TimeControl.BLITZ),
        ("40/7200:20/3600:900+30", TimeControl.CLASSICAL),
        (" 300+3 ", TimeControl.BLITZ),
        ("-", TimeControl.CORRESPONDENCE),
        ("1/86400", TimeControl.CORRESPONDENCE),
        ("1/259200", TimeControl.CORRESPONDENCE),
        ("1/60", TimeControl.BULLET),
        ("40/86400", TimeControl.CLASSICAL),
        ("?", None),
        ("", None),
        (None, None),
        ("*60", None),
        ("0", None),
        ("0+0", None),
        ("5 min", None),
        ("300+", None),
        ("-300", None),
        ("9" * 5_000, None),
    ],
)
def test_a_time_control_has_the_class_of_lichess(tag: str | None, expected: TimeControl | None) -> None:
    assert time_control(tag) == expected
