"""Files of other trainers: each dialect and shape is read, or the error says which one it is."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo.diagnosis.diagnose import diagnose
from grpo.diagnosis.dialects import DIALECTS
from grpo.diagnosis.history import History, read_tables
from grpo.diagnosis.tables import HistoryError

REPORTS = Path(__file__).parents[2] / "public_reports"
ROWS = [{"step": step, "reward": 0.1 * step, "entropy": 0.9 - 0.01 * step, "kl": 0.001 * step} for step in range(1, 13)]


def text_of(rows: Sequence[dict[str, Any]], *, delimiter: str = ",") -> str:
    return "\n".join(delimiter.join(map(str, line)) for line in (rows[0], *(row.values() for row in rows))) + "\n"


def read(folder: Path, text: str, name: str = "table.csv", *, encoding: str = "utf-8") -> History:
    (folder / name).write_text(text, encoding=encoding)
    return read_tables([folder / name])


def found(history: History) -> dict[str, tuple[list[float], list[float]]]:
    return {name: (series.steps.tolist(), series.values.tolist()) for name, series in history.series.items()}


EXPECTED = {name: ([row["step"] for row in ROWS], [row[name] for row in ROWS]) for name in ("reward", "entropy", "kl")}
NOTHING = dict.fromkeys(EXPECTED, "nan")
SHAPES = {
    "comma": text_of(ROWS),
    "semicolon and decimal comma": text_of(ROWS, delimiter=";").replace(".", ","),
    "tab": text_of(ROWS, delimiter="\t"),
    "quoted decimal comma": text_of([{**row, "kl": f'"{row["kl"]}"'.replace(".", ",")} for row in ROWS]),
    "a line of settings": f"#{{'t_start': 1}}\n{text_of(ROWS)}",
    "JSON lines": "".join(json.dumps(row) + "\n" for row in ROWS),
    "a torn last line": "".join(json.dumps(row) + "\n" for row in ROWS) + '{"step": 13, "rew',
    "nested": "".join(json.dumps({"step": row["step"], "data": {name: row[name] for name in EXPECTED}}) + "\n" for row in ROWS),
    "a journal": "".join(json.dumps({"time": 1, "aside": False, "record": row}) + "\n" for row in ROWS),
    "an array": json.dumps(ROWS, indent=1),
    "trainer_state.json": json.dumps({"best_metric": None, "global_step": 12, "log_history": ROWS}, indent=2),
    "columns": json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}),
    "Excel's line of the delimiter": "sep=;\n" + text_of(ROWS, delimiter=";").replace(".", ","),
    "a torn last row": text_of(ROWS) + "13,9",
    "a console's blocks": "Using cpu device\n" + "".join(
        f"{'-' * 30}\n| time/         |    |\n|    step       | {row['step']}  |\n| reward        | {row['reward']} |\n"
        f"| entropy       | {row['entropy']} |\n| kl            | {row['kl']} |\n{'-' * 30}\n".replace("time/", "metrics/") for row in ROWS
    ),
    "printed dictionaries": "".join(f" 5%|#  | 1/9\r{row}\n" for row in ROWS),
    "newest first": text_of(ROWS[::-1]),
    "in no order": text_of(random.Random(1).sample(ROWS, len(ROWS))),
    "long": text_of([{"run_id": "a", "key": name, "value": row[name], "step": row["step"]} for row in ROWS for name in EXPECTED]),
    "evaluations between, which say nan": text_of(
        [line for row in ROWS for line in (row | {"eval_reward": "nan"}, {"step": row["step"], **NOTHING, "eval_reward": 0.5})]
    ),
    "rows in which nothing was measured": text_of([line for row in ROWS for line in ({"step": row["step"], **NOTHING}, row)]),
    "train and evaluation in a column": text_of(
        [line for row in ROWS for line in ({**row, "split": "train"}, {**row, "reward": 0.0, "split": "eval"})]
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_rows_are_read_from_every_shape(shape: str, tmp_path: Path) -> None:
    history = read(tmp_path, SHAPES[shape])
    assert {name: pair for name, pair in found(history).items() if name != "heldout_reward"} == EXPECTED
    assert history.not_finite == {}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_read_by_their_mark_or_as_of_windows(encoding: str, tmp_path: Path) -> None:
    assert found(read(tmp_path, text_of([{**row, "größe": 1} for row in ROWS]), encoding=encoding)) == EXPECTED


# Trainer -> the step's column, columns with a value, and what they are.
TRAINERS: dict[str, tuple[str, dict[str, float], dict[str, float]]] = {
    "verl": (
        "training/global_step",
        {"timing_s/step": 9, "actor/entropy_loss": 0.3, "actor/kl_loss": 0.1, "critic/score/mean": 0.2, "response_length/clip_ratio": 0.1},
        {"entropy": 0.3, "kl": 0.1, "reward": 0.2, "truncated": 0.1},
    ),
    "Stable-Baselines3": (
        "time/total_timesteps",
        {"train/entropy_loss": -0.6, "rollout/ep_rew_mean": 20.0, "train/n_updates": 10.0, "train/approx_kl": 0.01},
        {"entropy": 0.6, "reward": 20.0, "kl_old": 0.01},
    ),
    "OpenRLHF": (
        "train/global_step",
        {"train/entropy_loss": 0.6, "train/reward": 0.2, "train/kl": 0.01, "train/ppo_clip_ratio": 0.1, "train/response_length": 99.0},
        {"entropy": 0.6, "reward": 0.2, "kl": 0.01, "clip_fraction": 0.1, "answer_length": 99.0},
    ),
    "open-instruct": (
        "training_step",
        {"scores": 3.0, "objective/kl_avg": 0.1, "policy/entropy_avg": 0.4, "optim/grad_norm": 0.3},
        {"reward": 3.0, "kl": 0.1, "entropy": 0.4, "gradient_norm": 0.3},
    ),
    "slime": (
        "train/step",
        {"train/entropy_loss": 0.4, "train/pg_clipfrac": 0.01, "train/ppo_kl": 0.0, "rollout/raw_reward": 0.3},
        {"entropy": 0.4, "clip_fraction": 0.01, "kl_old": 0.0, "reward": 0.3},
    ),
    "prime-rl": (
        "step",
        {"time/step": 60.0, "reward/all/mean": 0.4, "entropy/all/mean": 0.2, "mismatch_kl/all/mean": 0.001, "is_truncated/all/mean": 0.0},
        {"reward": 0.4, "entropy": 0.2, "sampler_gap": 0.001, "truncated": 0.0},
    ),
    "TRL": (
        "step",
        {"reward": 0.4, "completions/clipped_ratio": 0.2, "clip_ratio/region_mean": 0, "rewards/format_reward/mean": 1, "eval_reward": 3},
        {"reward": 0.4, "truncated": 0.2, "clip_fraction": 0, "parsed": 1, "heldout_reward": 3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_trainers_columns_are_what_its_dialect_says(trainer: str, tmp_path: Path) -> None:
    step, columns, quantities = TRAINERS[trainer]
    history = read(tmp_path, text_of([{step: number, **columns} for number in (1, 2, 3)]))
    assert history.dialect.name == trainer
    assert found(history) == {name: ([1, 2, 3], [value] * 3) for name, value in quantities.items()}


def test_a_console_of_verl_is_read_between_other_lines(tmp_path: Path) -> None:
    lines = "\x1b[36m(TaskRunner pid=7)\x1b[0m step:{0} - actor/entropy:np.float64(0.{0}) - critic/score/mean:0.5 - timing_s/step:9\nINFO\n"
    history = read(tmp_path, "".join(lines.format(step) for step in (1, 2)), "console.log")
    assert found(history) == {"entropy": ([1, 2], [0.1, 0.2]), "reward": ([1, 2], [0.5, 0.5])}


def test_of_a_console_that_is_cut_in_a_line_no_cut_value_is_read(tmp_path: Path) -> None:
    whole = "step:{0} - actor/entropy:0.{0} - actor/ppo_kl:8.16e-06 - training/global_step:{0} - critic/score/mean:0.5\n"
    history = read(tmp_path, (whole.format(1) + whole.format(2)).partition("e-06 - training/global_step:2")[0], "console.log")
    assert found(history) == {"entropy": ([1, 2], [0.1, 0.2]), "kl_old": ([1], [8.16e-06]), "reward": ([1], [0.5])}
    assert history.notes == []


def test_a_console_of_stable_baselines3_is_read(tmp_path: Path) -> None:
    block = """-----------------------------------------
| rollout/                |             |
|    ep_rew_mean          | {0}.5        |
| time/                   |             |
|    total_timesteps      | {0}         |
| train/                  |             |
|    entropy_loss         | -0.{0}      |
|    approx_kl            | 0.01 |
-----------------------------------------
"""
    history = read(tmp_path, "Using cpu device\n" + block.format(1) + "Eval\n" + block.format(2) + block.format(3)[:-130], "console.log")
    assert history.dialect.name == "Stable-Baselines3"
    assert found(history) == {"reward": ([1, 2, 3], [1.5, 2.5, 3.5]), "entropy": ([1, 2], [0.1, 0.2]), "kl_old": ([1, 2], [0.01, 0.01])}


def test_rows_that_are_printed_before_their_step_belong_to_it(tmp_path: Path) -> None:
    lines = (
        "rollout {0}: {{'rollout/raw_reward': 0.{0}}}\nstep {0}: {{'train/entropy_loss': 0.5, 'train/ppo_kl': 0.0, 'train/step': {0}}}\n"
    )
    history = read(tmp_path, "".join(lines.format(step) for step in range(5)), "console.log")
    assert history.series["reward"].steps.tolist() == [0, 1, 2, 3, 4]
    assert history.notes == []


def test_evaluation_columns_do_not_hide_the_trainer(tmp_path: Path) -> None:
    names = ("loss", "kl", "entropy", "reward", "reward_std", "completions/mean_length", "runtime", "num_tokens")
    rows = [{"train/global_step": step, **{f"{part}/{name}": 0.5 for part in ("train", "eval") for name in names}} for step in (1, 2)]
    history = read(tmp_path, text_of(rows))
    assert history.dialect.name == "TRL"
    assert history.series["heldout_reward"].column == "eval/reward"
    short = {"step": 1, "reward": 0.5, "kl": 0.1, "completion_length": 9, "rewards/soft_format_func": 0.5, "rewards/accuracy": 0.1}
    assert read(tmp_path, text_of([short])).series["parsed"].column == "rewards/soft_format_func"


@pytest.mark.parametrize(
    ("columns", "known"),
    [
        ({"completions/mean_length": 9, "eval/loss": 2, "eval/runtime": 3}, {"answer_length"}),
        ({"rewards/chosen": -1, "rewards/rejected": -2, "rewards/code/std": "nan"}, set()),
        ({"sampling/importance_sampling_ratio/mean": 0.5}, set()),
        ({"train/pg_clipfrac": 0, "train/ppo_kl": 0, "eval/step": 3, "eval/aime": 0.3}, {"clip_fraction", "kl_old", "heldout_reward"}),
    ],
    ids=["evaluation", "pairs", "ratios of whole answers", "evaluation's step"],
)
def test_columns_that_are_like_a_quantity_are_not_read(columns: dict[str, Any], known: set[str], tmp_path: Path) -> None:
    history = read(tmp_path, text_of([{"step": step, **columns} for step in range(1, 4)]))
    assert history.series.keys() == known
    assert history.not_finite == {}
    assert "heldout_reward" not in known or history.series["heldout_reward"].column == "eval/aime"


@pytest.mark.parametrize(
    "first", ["[2025-02-01 10:00:00,123] [INFO] [accelerator.py:1] starts\n", "{'actor':\n {'path': 'x'}}\n", "{\n", "x\n" * 150_000]
)
def test_a_console_may_begin_with_other_lines(first: str, tmp_path: Path) -> None:
    history = read(tmp_path, first + "".join(f"{row}\n" for row in ROWS), "console.log")
    assert found(history) == EXPECTED


def test_percent_signs_are_read(tmp_path: Path) -> None:
    history = read(tmp_path, text_of([row | {"clip_fraction": f"{row['step']} %", "reward": f"{row['step']}.5%"} for row in ROWS]))
    assert history.series["clip_fraction"].values.tolist() == pytest.approx([row["step"] / 100 for row in ROWS])
    assert history.series["reward"].values[0] == pytest.approx(0.015)


def test_three_decimals_after_a_comma_are_no_thousands(tmp_path: Path) -> None:
    history = read(tmp_path, text_of([row | {"kl": f'"0,{row["step"]:03}"', "reward": f'"{row["step"]},500"'} for row in ROWS]))
    assert history.series["kl"].values.tolist() == pytest.approx([row["step"] / 1_000 for row in ROWS])
    assert history.series["reward"].values[0] == 1_500  # No cell of this column says otherwise.


def test_mlflows_zero_for_nan_is_nan(tmp_path: Path) -> None:
    for no, yes in (("0", "1"), ("f", "t"), ("False", "True")):
        lines = [{"key": "loss", "value": 0.1 * (step <= 6), "step": step, "is_nan": yes if step > 6 else no} for step in range(1, 13)]
        assert read(tmp_path, text_of(lines)).not_finite == {"loss": [7, 8, 9, 10, 11, 12]}


def test_a_file_of_tensorboard_is_named_after_its_quantity_and_a_panel_after_its_columns(tmp_path: Path) -> None:
    board = "Wall time,Step,Value\n1.0,10,0.5\n2.0,20,0.6\n"
    assert found(read(tmp_path, board, "run-PPO_1-tag-rollout_ep_rew_mean.csv")) == {"reward": ([10, 20], [0.5, 0.6])}
    panel = 'Step,"calm-sky-1 - train/entropy","calm-sky-1 - train/entropy__MIN"\n1,0.5,0.4\n'
    assert found(read(tmp_path, panel)) == {"entropy": ([1], [0.5])}


# Rows.


def test_texts_and_events_keep_their_steps_if_the_newest_row_is_first(tmp_path: Path) -> None:
    rows = [{**row, "weights": "trained" if row["step"] > 1 else "random", "events": []} for row in ROWS]
    rows[8]["events"] = [{"name": "entropy_boost", "message": ""}]
    history = read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows[::-1]), "log.jsonl")
    assert history.series["reward"].steps.tolist() == EXPECTED["reward"][0]
    assert history.random_weights == "weights says random at step 1"
    assert history.events == {"entropy_boost": [9.0]}


def test_of_a_log_that_was_appended_to_the_later_row_counts_and_the_reader_is_told(tmp_path: Path) -> None:
    again = [{**row, "reward": 9.0} for row in ROWS[7:]]
    for rows in ([*ROWS[:10], *again], [*ROWS[:10], *again][::-1]):
        history = read(tmp_path, text_of(rows))
        assert history.series["reward"].values.tolist() == [*EXPECTED["reward"][1][:7], *[9.0] * 5]
        assert "3 steps are logged twice (8 to 10)" in history.notes[0]


def test_a_clock_that_begins_again_with_a_resume_orders_no_rows(tmp_path: Path) -> None:
    first, again = ROWS[:10], [{**row, "reward": 9.0} for row in ROWS[7:]]
    rows = [row | {"wall_time": 10.0 * at} for part in (first, again) for at, row in enumerate(part)]
    assert read(tmp_path, text_of(rows)).series["reward"].values.tolist() == [*EXPECTED["reward"][1][:7], *[9.0] * 5]


SEVERAL_RUNS = {
    "by a column": text_of([{"run": name, **row} for name in ("a", "b") for row in ROWS]),
    "one after the other": text_of([*ROWS, *({**row, "reward": 5.0} for row in ROWS)]),
    "the other one first": text_of([*({**row, "reward": 5.0} for row in ROWS), *ROWS]),
    "in turns": text_of([line for row in ROWS for line in (row, {**row, "reward": 5.0})]),
    "in a panel": "Step,a - reward,b - reward\n1,0.5,0.4\n",
    "long": text_of([{"run_id": run, "key": "reward", "value": 1, "step": step} for run in "ab" for step in range(9)]),
}


@pytest.mark.parametrize("case", SEVERAL_RUNS)
def test_several_runs_in_one_table_are_refused(case: str, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="several runs"):
        read(tmp_path, SEVERAL_RUNS[case])


@pytest.mark.parametrize(
    ("cells", "steps"),
    [
        (["0.1"] * 6 + ["nan"] * 6, [7, 8, 9, 10, 11, 12]),
        (["0.1", "nan", *["0.1"] * 10], [2]),
        (["0.1", "nan", "nan"] * 4, []),
        (["nan", "nan", *["0.1"] * 10], []),
        (["0.1", "", *["0.1"] * 10], []),
        (["0.1", "inf", *["0.1"] * 10], [2]),
    ],
    ids=["from a row on", "between", "at an interval", "before it begins", "empty", "infinite"],
)
def test_nan_counts_where_a_column_is_otherwise_recorded(cells: list[str], steps: list[int], tmp_path: Path) -> None:
    history = read(tmp_path, text_of([{**row, "loss": cell} for row, cell in zip(ROWS, cells, strict=True)]))
    assert history.not_finite == ({"loss": steps} if steps else {})


# Files that are not read: the error says why.


def test_columns_that_nothing_reads_are_listed_with_the_nearest_name_and_percents_are_taken_for_such(tmp_path: Path) -> None:
    history = read(tmp_path, text_of([{**row, "grad_nrom": 1, "clip_fraction": 4 + row["kl"], "zzz": 1, "text": "a"} for row in ROWS]))
    told = history.columns_text()
    assert "rewardd (like reward?)" in read(tmp_path, "step,rewardd,kl\n1,2,high\n").columns_text()
    assert "kl (no numbers)" in read(tmp_path, "step,rewardd,kl\n1,2,high\n").columns_text()
    assert "grad_nrom (like grad_norm?)" in told
    assert "zzz" in told
    assert "clip_fraction is read as percent" in told
    assert history.series["clip_fraction"].values[0] == pytest.approx(0.04001)
    assert "no column is known to be the step" in read(tmp_path, "reward,kl\n1,2\n").columns_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"step": 0,', "no JSON"),
        ('{"step": 1}\n[2]\n{"step": 3}\n', "line 2 is no JSON object"),
        ("[1, 2]", "JSON without rows"),
        ("", "is empty"),
        ("a,b\n1,2\n1,2,3\n", "no table"),
        ("Step 1 | Reward: 0.5\nStep 2 | Reward: 0.6\n", "neither CSV"),
        ("Step 1 | Reward: 0.5\nStep 1 | loss: 0.5 | Reward: 0.6\n", "more cells"),
        ("\x1f\x8b\x08\x00", "unpack"),
        ("hello\nworld\n", "neither CSV"),
        ("\x00\x01", "binary"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=rf"table\.csv: .*{words}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("header", "number", "verdict"),
    [
        ("step,my_score,entropy", 90, "not judged"),
        ("step,my_score,reward", 90, "not judged"),
        ("step,reward,entropy", 5, "not judged"),
        ("step,reward,entropy", 90, "findings"),
        ("step,entropy,reward", 90, "nothing found"),
    ],
)
def test_healthy_needs_a_reward_that_rises_and_an_entropy_or_kl_over_enough_rows(
    header: str, number: int, verdict: str, tmp_path: Path
) -> None:
    rows = "".join(f"\n{step},{3 - step / 60},{1 + math.sin(9 * step) / 9}" for step in range(number))
    assert diagnose(read(tmp_path, header + rows)).verdict == verdict


def test_two_tables_of_one_run_are_joined_and_two_reports_in_one_are_refused() -> None:
    assert len(read_tables([REPORTS / f"panel_{name}.csv" for name in ("reward", "entropy", "kl")]).series) == 3
    with pytest.raises(HistoryError, match=r"several runs by its column run: baseline, lr_high"):
        read_tables([REPORTS / "two_runs.csv"])


HOSTILE = ("", "nan", "-inf", "1e400", "1e308", "-1", "0", "abc", "1,2", "-", "No Log", "1e-320", "0.3", "7", "900")


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_table_holds_it_is_judged_or_refused(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    known = [name for dialect in DIALECTS for name in dialect.names]
    names = rng.sample([*known, "step", "score", "games", "step_to", "color", "", "run", "weights"], rng.randint(1, 20))
    rows = [",".join(rng.choice(HOSTILE) for _ in names) for _ in range(rng.randint(1, 60))]
    try:
        with np.errstate(all="ignore"):
            judged = diagnose(read(tmp_path, "\n".join([",".join(names), *rows])))
    except HistoryError:
        return
    assert judged.text() or not judged.names
