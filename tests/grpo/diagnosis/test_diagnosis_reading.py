"""Histories from files: what is read of TRL's and verl's columns, and what is refused."""

from pathlib import Path

import pytest

from grpo.diagnosis.reading import HistoryError, read_run_history


def write(folder: Path, text: str, name: str = "history.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_empty_cells_are_not_recorded_and_nan_is(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,entropy,loss\n0,3.0,-0.1\n10,,nan\n20,2.5,\n30,2.4,-0.2\n")])
    assert history.series["entropy"].values == (3.0, 2.5, 2.4)
    assert history.series["loss"].values == (-0.1, -0.2)
    assert history.not_finite == {"loss": (10,)}


def test_columns_of_trl_and_verl_are_known_and_evaluations_are_not_training(tmp_path: Path) -> None:
    trl = '{"step": 1, "reward": 0.1, "grad_norm": 0.5, "clip_ratio/region_mean": 0.0}\n{"step": 2, "reward": null, "grad_norm": 0.4}\n'
    history = read_run_history([write(tmp_path, trl, "log.jsonl")])
    assert {name: series.values for name, series in history.series.items()} == {
        "reward": (0.1,), "gradient_norm": (0.5, 0.4), "clip_fraction": (0.0,),
    }  # fmt: skip
    verl = "step,actor/entropy,critic/score/mean,val/entropy,response_length/clip_ratio\n1,0.5,0.2,9.0,0.1\n"
    history = read_run_history([write(tmp_path, verl)])
    assert history.series.keys() == {"entropy", "reward", "truncated"}
    assert history.is_of_language_model
    assert history.unused == ("val/entropy",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no table"),
        ("step,entropy\n", "is no table"),
        ("step,entropy\n0,1,2\n", "is no table"),
        ("step,step\n0,1\n", "is no table"),
        ("row,entropy\n0,1\n", "no column is the step"),
        ("step,entropy\n0,high\n", "column entropy: 'high' is not a number"),
        ("step,colour\n0,1\n", "no column holds anything to diagnose"),
        ("step,score,games\n0,80,10\n", "not between 0 and 1"),
        ('{"step": 0,', "neither CSV nor JSON lines"),
    ],
)
def test_what_is_no_history_is_refused_by_name(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=why) as refusal:
        read_run_history([write(tmp_path, text)])
    assert str(refusal.value).startswith(str(tmp_path / "history.csv"))
