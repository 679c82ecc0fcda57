"""The example runs as it stands, with smaller numbers, and the front door of the library opens."""

import runpy
from pathlib import Path

import pytest

import grpo

EXAMPLE = Path(__file__).parents[2] / "examples" / "small_grpo.py"
SMALLER = {"1_200": "60", "= 150": "= 30", "= 160": "= 4", "= 40": "= 3", "= 256": "= 32", "NUM_OPENINGS = 50": "NUM_OPENINGS = 2"}


def test_the_example_trains_and_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("record.step % 10", "record.step % 2")
    for number, smaller in SMALLER.items():
        assert number in text
        text = text.replace(number, smaller)
    (tmp_path / "small.py").write_text(text, encoding="utf-8")
    runpy.run_path(str(tmp_path / "small.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "120 boards, each with the value of every legal move" in printed
    assert "GRPO, step 2: reward_gain" in printed
    assert "2 openings, both colors: score against the start" in printed


def test_the_front_door_offers_what_it_lists() -> None:
    assert sorted(grpo.__all__) == sorted(grpo._MODULES)
    assert all(getattr(grpo, name).__name__ == name for name in grpo.__all__)
    with pytest.raises(AttributeError, match="'Trainr'"):
        _ = grpo.Trainr
