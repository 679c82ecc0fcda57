"""Histories from files: what is read, whoever wrote it, and what is refused in words."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.reading import HistoryError, read_run_history


def write(folder: Path, text: str, name: str = "history.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_empty_cells_are_not_recorded_and_nan_is(tmp_path: Path) -> None:
    rows = "\n".join(f"{step},2.0,-0.1" for step in range(40, 100, 10))
    history = read_run_history([write(tmp_path, f"step,entropy,loss\n0,3.0,-0.1\n10,,nan\n20,2.5,\n30,2.4,-0.2\n{rows}\n")])
    assert history.series["entropy"].values[:3] == (3.0, 2.5, 2.4)
    assert history.series["loss"].values[:2] == (-0.1, -0.2)
    assert history.not_finite == {"loss": (10,)}


def test_a_column_that_is_mostly_nan_was_recorded_now_and_then(tmp_path: Path) -> None:
    rows = "\n".join(f"{step},3.0,{'0.5' if step % 10 == 0 else 'nan'}" for step in range(30))
    assert read_run_history([write(tmp_path, f"step,entropy,kl\n{rows}\n")]).not_finite == {}


@pytest.mark.parametrize(
    ("cells", "bad"),
    [
        (["1"] * 30 + ["nan"] * 70, range(30, 100)),
        (["nan"] * 30 + ["1"] * 70, ()),
        (["1" if step % 3 == 0 else "nan" for step in range(100)], ()),
        ([*(["1" if step % 3 == 0 else "nan" for step in range(60)]), *(["nan"] * 40)], range(58, 100)),
        (["nan"] * 100, range(100)),
        (["1"] * 50 + ["inf"] + ["1"] * 49, (50,)),
    ],
    ids=["from then on", "not before", "every third row", "every third row, and no longer", "never", "infinite"],
)
def test_nan_is_told_from_what_was_not_recorded_by_its_place(cells: list[str], bad: Sequence[int], tmp_path: Path) -> None:
    rows = "\n".join(f"{step},2.0,{cell}" for step, cell in enumerate(cells))
    history = read_run_history([write(tmp_path, f"step,entropy,grad_norm\n{rows}\n")])
    assert history.not_finite == ({"grad_norm": tuple(bad)} if bad else {})


def test_a_loss_that_no_rule_asks_for_is_watched_for_numbers_that_are_none(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,entropy,value_loss\n0,2.0,1.0\n1,2.0,nan\n2,2.0,nan\n")])
    assert "nan_steps" in diagnose(history).names


@pytest.mark.parametrize("cell", ["1e155", "-1e300", "9" * 400])
def test_a_number_whose_square_overflows_is_a_run_that_has_fallen_apart(cell: str, tmp_path: Path) -> None:
    rows = "\n".join(f"{step},2.0,{cell if step == 20 else 0.1},{1 + step / 50}" for step in range(40))
    history = read_run_history([write(tmp_path, f"step,entropy,grad_norm,reward\n{rows}\n")])
    assert history.not_finite == {"grad_norm": (20,)}
    assert "nan_steps" in diagnose(history, {"grpo": {"learning_rate": 10**400}}).names


def test_rows_that_a_resumed_run_made_anew_are_the_later_ones(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,entropy\n0,3.0\n10,2.9\n20,0.1\n10,2.8\n20,2.7\n")])
    assert [(row.step, row.value) for row in history.series["entropy"].rows] == [(0, 3.0), (10, 2.8), (20, 2.7)]


def test_a_count_of_logged_rows_has_no_step_before_the_first_update(tmp_path: Path) -> None:
    text = "{},kl,entropy\n0,0.02,2.0\n1,0.03,2.0\n2,0.03,2.0\n"
    assert "kl_at_step_zero" in diagnose(read_run_history([write(tmp_path, text.format("step"))])).names
    assert "kl_at_step_zero" not in diagnose(read_run_history([write(tmp_path, text.format("_step"))])).names


def test_a_step_of_its_own_goes_before_a_count_of_logged_rows(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "_step,entropy,train/global_step\n0,2.0,10\n1,1.9,20\n")])
    assert [row.step for row in history.series["entropy"].rows] == [10, 20]


def test_an_evaluation_in_a_row_of_its_own_has_the_step_of_its_own_column(tmp_path: Path) -> None:
    text = "train/global_step,train/reward,eval/global_step,eval/acc\n5,0.1,,\n10,0.2,,\n,,5,0.4\n15,0.3,,\n,,15,0.5\n"
    series = read_run_history([write(tmp_path, text)]).series
    assert [(row.step, row.value) for row in series["reward"].rows] == [(5, 0.1), (10, 0.2), (15, 0.3)], "a late evaluation replaces none"
    assert [(row.step, row.value) for row in series["heldout_reward"].rows] == [(5, 0.4), (15, 0.5)]


def test_a_row_that_only_its_place_gives_a_step_has_that_of_training_before_it(tmp_path: Path) -> None:
    text = "_step,train/global_step,train/reward,eval/acc\n0,,,0.3\n1,5,0.1,\n2,10,0.2,\n3,,,0.4\n"
    series = read_run_history([write(tmp_path, text)]).series
    assert [(row.step, row.value) for row in series["heldout_reward"].rows] == [(0, 0.3), (10, 0.4)]
    with pytest.raises(HistoryError, match=r"train/global_step: '' is not a number"):
        read_run_history([write(tmp_path, text.replace("_step,train", "row,train", 1))])


def test_the_rows_of_a_trainers_state_are_a_history(tmp_path: Path) -> None:
    rows = '{"step": 1, "reward": 0.1, "grad_norm": 0.5}, {"step": 2, "reward": 0.2, "grad_norm": NaN}, {"step": 3, "reward": null}'
    history = read_run_history([write(tmp_path, f'{{"global_step": 3,\n"log_history": [{rows}]}}', "trainer_state.json")])
    assert [(row.step, row.value) for row in history.series["reward"].rows] == [(1, 0.1), (2, 0.2)]
    assert history.not_finite == {"grad_norm": (2,)}


def test_names_that_are_written_again_and_a_last_row_that_is_torn_are_no_rows(tmp_path: Path) -> None:
    text = "step,reward,kl\n1,0.1,0.01\nstep,reward,kl\n2,0.2,0.02\n"
    series = read_run_history([write(tmp_path, f"{text}3,0.")]).series
    assert series["reward"].values == (0.1, 0.2)
    assert read_run_history([write(tmp_path, f"{text}3,0.3\n")]).series["reward"].values == (0.1, 0.2, 0.3)


def test_what_is_measured_in_evaluation_is_not_taken_for_training(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,eval/entropy,entropy\n0,0.1,2.0\n1,0.1,1.9\n")])
    assert history.series["entropy"].values == (2.0, 1.9)


def test_a_chart_of_tensorboard_is_known_by_its_files_name(tmp_path: Path) -> None:
    path = write(tmp_path, "Wall time,Step,Value\n1.7e9,0,3.0\n1.7e9,10,2.0\n", "run-3-tag-train_entropy.csv")
    assert read_run_history([path]).series["entropy"].values == (3.0, 2.0)


def test_cells_that_say_nothing_are_empty(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,entropy,kl\n0,3.0,None\n1,N/A,0.1\n2,2.0,null\n")])
    assert history.series["entropy"].values == (3.0, 2.0)
    assert history.series["kl"].values == (0.1,)


def test_several_tables_of_one_run_are_one_history(tmp_path: Path) -> None:
    one = write(tmp_path, "step,entropy\n0,3.0\n200,2.0\n", "one.csv")
    other = write(tmp_path, "step,entropy,loss\n0,9.9,-0.1\n100,2.5,-0.2\n", "other.csv")
    history = read_run_history([one, other])
    assert [(row.step, row.value) for row in history.series["entropy"].rows] == [(0, 3.0), (100, 2.5), (200, 2.0)]
    assert history.series["loss"].values == (-0.1, -0.2)


def test_windows_keep_both_their_ends(tmp_path: Path) -> None:
    series = read_run_history([write(tmp_path, "step_from,step_to,avg_reward\n0,500,0.1\n500,1000,0.2\n")]).series["reward"]
    assert [(row.step, row.end) for row in series.rows] == [(0, 500), (500, 1000)]


def test_statistics_stand_for_a_series(tmp_path: Path) -> None:
    summary = read_run_history([write(tmp_path, "metric,mean,min,max,first,last\nclip_fraction,0.48,0.4,0.59,0.556,\n")]).summaries[
        "clip_fraction"
    ]
    assert (summary.mean, summary.low, summary.high, summary.first, summary.last) == (0.48, 0.4, 0.59, 0.556, None)


def test_an_export_of_mlflow_has_a_row_for_each_value(tmp_path: Path) -> None:
    text = "run_id,key,value,step,timestamp\nr1,train/entropy,3.0,0,1\nr1,train/kl,0.0,0,1\nr1,train/entropy,2.0,10,2\n"
    history = read_run_history([write(tmp_path, text)])
    assert history.series["entropy"].values == (3.0, 2.0)
    assert history.series["kl"].values == (0.0,)


@pytest.mark.parametrize(
    "header",
    [
        "Step,amber-fox-7 - actor/pg_clipfrac,amber-fox-7 - actor/pg_clipfrac__MIN,amber-fox-7 - actor/pg_clipfrac__MAX",
        "_step,actor/pg_clipfrac,_runtime,_timestamp",
    ],
)
def test_both_exports_of_weights_and_biases_are_read(header: str, tmp_path: Path) -> None:
    filler = ",0.0,9.0" if "MIN" in header else ",5.1,1700000000"
    history = read_run_history([write(tmp_path, f"{header}\n0,0.1{filler}\n10,0.2{filler}\n")])
    assert history.series["clip_fraction"].values == (0.1, 0.2)


@pytest.mark.parametrize(
    ("column", "quantity"),
    [
        ("train/kl", "kl"),
        ("objective/kl", "kl"),
        ("actor/ppo_kl", "kl_old"),
        ("train/approx_kl", "kl_old"),
        ("training/kl", "kl"),
        ("critic/rewards/mean", "reward"),
        ("train/frac_reward_zero_std", "silent_groups"),
        ("grpo/silent_groups", "silent_groups"),
        ("grpo/logit_share/anchor_kl", "logit_share/reference_kl"),
        ("train/clip_ratio/region_mean", "clip_fraction"),
        ("actor/grad_norm", "gradient_norm"),
        ("Avg Reward", "reward"),
        ("grpo/kl_reference", "kl"),
        ("grpo/entropy", "entropy"),
    ],
)
def test_columns_are_known_by_the_names_that_trainers_have_for_them(column: str, quantity: str, tmp_path: Path) -> None:
    assert read_run_history([write(tmp_path, f"step,{column}\n0,0.25\n1,0.5\n")]).series[quantity].values == (0.25, 0.5)


def test_an_entropy_of_one_phase_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,grpo/entropy,grpo/entropy/endgame\n1,2.0,9.0\n")])
    assert history.series["entropy"].values == (2.0,)
    assert history.is_ours
    assert "impossible_entropy" not in diagnose(history).names


def test_our_own_metrics_from_a_table_are_judged_as_ours(tmp_path: Path) -> None:
    rows = "\n".join(f"{step},0.03,1" for step in range(1, 40))
    found = diagnose(read_run_history([write(tmp_path, f"step,grpo/kl_old_first,grpo/optimiser_steps\n{rows}\n")]))
    assert "temperature_mismatch" in found.names


def test_scores_come_from_a_table_of_their_own_or_from_the_history(tmp_path: Path) -> None:
    history = write(tmp_path, "step,entropy\n0,3.0\n")
    evals = write(tmp_path, "step,win_rate,num_games\n0,0.1,64\n500,0.2,\n", "evals.csv")
    looks = read_run_history([history], evals=evals).evaluations
    assert [(look.step, look.score, look.games) for look in looks] == [(0, 0.1, 64), (500, 0.2, None)]
    assert read_run_history([evals]).evaluations == looks


REFUSED = {
    "no such file": (None, ["there is no such file", "CSV"]),
    "empty": ("", ["names 0 columns"]),
    "one column": ("step\n1\n", ["names 1 columns"]),
    "names alone": ("step,entropy\n", ["no row"]),
    "no step": ("colour,entropy\n1,3.0\n", ["no column is the step", "colour, entropy"]),
    "JSON": ('{"step": 1,\n "entropy": 3.0}\n', ["looks like JSON", "trainer_state.json"]),
    "JSON without rows": ('{"log_history": []}\n', ["looks like JSON"]),
    "JSON of many names": ('{"log_history": [' + '{"reward": 0.5, "kl": 0.1}, ' * 1_000, ["looks like JSON"]),
    "a share in percent": ("step,clip_fraction\n1,12.5\n", ["clip_fraction: 12.5 is not between 0 and 1", "divide by 100"]),
    "nothing known": ("step,colour\n1,2\n", ["no column holds anything to diagnose", "colour"]),
    "a word": ("step,entropy\n1,high\n", ["row 2", "entropy", "'high' is not a number"]),
    "a step that is none": ("step,entropy\n1,3.0\nx,3.0\n", ["row 3", "step", "'x'"]),
    "a step left out": ("step,entropy\n,3.0\n", ["row 2", "step", "''"]),
    "too many cells": ("step,entropy\n1,3.0,4.0\n", ["row 2 has 3 cells"]),
    "one name twice": ("step,entropy,entropy\n1,2,3\n", ["two columns are called entropy"]),
    "two runs of W&B": ("Step,a - kl,b - kl\n1,2,3\n", ["two runs", "'a'", "'b'"]),
    "two runs of MLflow": ("run_id,key,value,step\na,kl,1,1\nb,kl,1,1\n", ["holds 2 runs"]),
    "MLflow without steps": ("run_id,key,value\na,kl,1\n", ["no column `step`"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_history_is_refused_with_what_where_and_why(case: str, tmp_path: Path) -> None:
    text, words = REFUSED[case]
    path = tmp_path / "nowhere.csv" if text is None else write(tmp_path, text)
    with pytest.raises(HistoryError) as caught:
        read_run_history([path])
    assert all(word in str(caught.value) for word in [path.name, *words])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_columns_may_be_parted_by_any_usual_sign(delimiter: str, tmp_path: Path) -> None:
    text = "step,entropy,kl\n0,3.0,0\n1,2.5,0.1\n".replace(",", delimiter)
    assert read_run_history([write(tmp_path, f"\ufeff{text}")]).series["kl"].values == (0.0, 0.1)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_bytes(b"step,entropy\n\xff\xfe\x00,1\n")
    with pytest.raises(HistoryError, match="UTF-8"):
        read_run_history([path])
    with pytest.raises(HistoryError, match="is a folder"):
        read_run_history([tmp_path])


def test_evals_without_a_score_are_refused(tmp_path: Path) -> None:
    history = write(tmp_path, "step,entropy\n0,3.0\n")
    with pytest.raises(HistoryError, match="no row has both a step and a score"):
        read_run_history([history], evals=write(tmp_path, "step,elo\n0,1500\n", "evals.csv"))


def test_a_score_that_is_no_share_of_points_is_refused_as_evals_and_left_alone_in_a_history(tmp_path: Path) -> None:
    history = write(tmp_path, "step,entropy,score\n0,3.0,-0.3\n")
    assert read_run_history([history]).evaluations == ()
    with pytest.raises(HistoryError, match="the score 43 is not between 0 and 1"):
        read_run_history([history], evals=write(tmp_path, "step,score\n1,43\n", "evals.csv"))


def test_infinity_is_not_finite_and_its_place_is_kept(tmp_path: Path) -> None:
    history = read_run_history([write(tmp_path, "step,grad_norm\n0,1.0\n5,inf\n9,2.0\n")])
    assert history.not_finite == {"grad_norm": (5,)}
    assert all(math.isfinite(value) for value in history.series["gradient_norm"].values)
