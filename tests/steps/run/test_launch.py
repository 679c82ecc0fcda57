"""A run's name and the command that starts it again."""

import doctest

from grpo.settings.tree import read_settings
from steps.run import launch
from steps.run.launch import launch_of


def test_the_example_in_the_documentation_is_true() -> None:
    assert doctest.testmod(launch) == (0, 1)


def test_a_run_is_called_by_what_it_changes() -> None:
    text = 'preset = "smoke"\nseed = 3\nboards.files = ["/home/me/own.pgn", "b.epd"]\ngrpo.num_steps = 7'
    for more, name in {
        "": "smoke, boards.files = own.pgn b.epd, grpo.num_steps = 7, seed 3",
        "\ngrpo.group_size = 5": "smoke, boards.files = own.pgn b.epd, grpo.group_size = 5, grpo.num_steps = 7, seed 3",
        "\ngrpo.group_size = 5\ngrpo.clip_low = 0.1": "3 and more",
    }.items():
        label = launch_of(read_settings(text + more).model_dump(mode="json")).label
        if name == "3 and more":
            assert label.count(" = ") == 3
            assert label.endswith(", 1 more, seed 3")
        else:
            assert sorted(label.split(", ")) == sorted(name.split(", "))
