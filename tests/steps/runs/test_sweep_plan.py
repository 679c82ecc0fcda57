"""The plan of a sweep: every combination with every seed, no run twice, bad settings refused, and keys by which runs are found again."""

import doctest
from pathlib import Path

import pytest

from grpo.settings.tree import ConfigError, read_settings
from steps.runs import sweep_plan
from steps.runs.sweep_plan import SweepPlan, plan_sweep, split_values

RATES = "grpo.learning_rate=1e-3,2e-3"


def planned(*grid: str, settings: str = "test", seeds: tuple[int, ...] = (0, 1), made_by: str = "code and engine") -> SweepPlan:
    return plan_sweep(settings, seeds, grid, made_by=made_by)


def test_the_examples_hold() -> None:
    assert doctest.testmod(sweep_plan).failed == 0


def test_every_combination_is_run_with_every_seed_and_seed_by_seed() -> None:
    plan = planned(RATES, "grpo.group_size=4,8")
    assert plan.combinations == tuple(
        f"grpo.learning_rate = {rate}, grpo.group_size = {size}" for rate in ("1e-3", "2e-3") for size in ("4", "8")
    )
    assert [(run.seed, run.combination) for run in plan.runs] == [(seed, name) for seed in (0, 1) for name in plan.combinations]
    found = [read_settings(run.launch.text) for run in plan.runs]
    assert [(each.seed, each.grpo.learning_rate, each.grpo.group_size) for each in found] == [
        (seed, rate, size) for seed in (0, 1) for rate in (1e-3, 2e-3) for size in (4, 8)
    ]


def test_without_a_grid_there_is_one_combination_of_no_name() -> None:
    plan = planned(seeds=(3,))
    assert plan.combinations == ("",)
    assert [run.name for run in plan.runs] == ["seed 3"]
    assert read_settings(plan.runs[0].launch.text) == read_settings('preset = "test"\nseed = 3')


def test_words_need_no_quotes_and_lists_keep_their_commas() -> None:
    plan = planned("grpo.entropy_schedule=constant,target", "evaluation.ladder.nodes=[1],[1, 300]", "grpo.mirrors_boards=true", seeds=(0,))
    found = [read_settings(run.launch.text) for run in plan.runs]
    assert [(each.grpo.entropy_schedule, each.evaluation.ladder.nodes) for each in found] == [
        ("constant", (1,)),
        ("constant", (1, 300)),
        ("target", (1,)),
        ("target", (1, 300)),
    ]
    assert {each.grpo.mirrors_boards for each in found} == {True}


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("1", ["1"]), ("", [""]), ("1,", ["1", ""]), ("'a,b',\"c,[\"", ["'a,b'", '"c,["']), ("{a = [1, 2]}, 3", ["{a = [1, 2]}", "3"])],
)
def test_values_are_split_at_the_commas_between_them(text: str, pieces: list[str]) -> None:
    assert split_values(text) == pieces


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("grpo.lerning_rate=1e-3", "settings: unknown key grpo.lerning_rate; did you mean learning_rate?"),
        ("grpo.num_steps=3,many", "settings: grpo.num_steps = 'many': input should be a valid integer"),
        ("grpo.learning_rate=1e-3,-1", "settings: grpo.learning_rate = -1: input should be greater than 0"),
        ("grpo.num_steps", "settings: not readable: .*which is: grpo.num_steps;"),
        ("grpo.num_steps=3,", "settings: not readable: .*which is: grpo.num_steps =;"),
        ("preset=smoke,laptop", "settings: not readable: a key is given twice"),
        ("seed=1,2", "settings: seed: give seeds as `--seeds 1 2`, not by --set"),
        ("grpo.num_steps=3,3", "settings: two runs of the sweep are the same: grpo.num_steps = 3, seed 0, and grpo.num_steps = 3, seed 0;"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_usual_message(grid: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(grid)


def test_unknown_settings_and_a_seed_that_is_given_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="settings: preset = 'smok' does not exist; did you mean smoke"):
        planned(settings="smok")
    with pytest.raises(ConfigError, match="two runs of the sweep are the same: seed 4, and seed 4; give each seed and value once"):
        planned(seeds=(4, 4))


def test_a_run_keeps_its_key_in_a_larger_sweep_and_loses_it_with_other_code_or_settings() -> None:
    small, large = planned(), planned(RATES, seeds=(0, 1, 2))
    usual = read_settings("test").grpo.learning_rate
    assert planned(f"grpo.learning_rate={usual}").runs[0].key == small.runs[0].key
    assert {run.key for run in planned(RATES).runs} < {run.key for run in large.runs}
    assert small.id != large.id
    assert not {run.key for run in planned(made_by="other code").runs} & {run.key for run in small.runs}
    assert len({run.key for run in large.runs}) == 6


def test_a_settings_file_that_is_edited_under_way_changes_no_planned_run(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('preset = "test"\ngrpo.num_steps = 4\n')
    plan = planned(settings=str(path), seeds=(0,))
    path.write_text('preset = "test"\ngrpo.num_steps = 5\n')
    assert read_settings(plan.runs[0].launch.text).grpo.num_steps == 4
    assert planned(settings=str(path), seeds=(0,)).runs[0].key != plan.runs[0].key


def test_the_command_says_again_what_was_asked() -> None:
    assert planned('grpo.entropy_schedule="target"').command == "chess-grpo sweep test --seeds 0 1 --set 'grpo.entropy_schedule=\"target\"'"
