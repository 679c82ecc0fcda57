"""Pictures of a run: the same numbers give the same bytes, and what is drawn is what was measured."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from logged_runs import words

from grpo.board.phases import PHASES
from grpo.metrics.table import TERMS, Record
from grpo.settings.tree import read_settings
from steps.tracking.plots import network_plots, phases_plot, selection_plot


def history(entropies: list[float]) -> list[Record]:
    shares = {f"grpo/logit_share/{term}": 1 / len(TERMS) for term in TERMS}
    return [
        Record(step, {"grpo/entropy": value, "grpo/log_num_legal": 3.0, "grpo/reward_mean": 0.5, **shares})
        for step, value in enumerate(entropies, 1)
    ]


def line(picture: bytes, colour: str) -> list[float]:
    """Return the heights, downwards, of the first line of a colour that has as many points as steps were drawn."""
    paths = re.findall(r'<path d="([^"]+)"[^>]*style="fill: none; stroke: ' + colour, picture.decode())
    return [float(y) for _, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", paths[0])]


def decision(**more: Any) -> dict[str, Any]:
    score = {"score": 0.6, "low": 0.5, "high": 0.7}
    return {
        "verdict": "better",
        "candidate_step": 1_004,
        "screening": [{"round": 0, "candidate": 900, "kept": False, "so_far": score}],
        "confirmation_best_moves": {**score, "adjudicated": {**score, "score": 0.625}},
        "confirmation_sampled_moves": score,
        "previous_champion": None,
        **more,
    }


BOARDS = {"natural_phases": dict.fromkeys(PHASES, 10), "phases": dict.fromkeys(PHASES, 1234)}


def test_the_same_numbers_give_the_same_bytes_and_no_date_or_machine_is_in_them() -> None:
    settings = read_settings("test")
    first, second = ({**network_plots(history([2.0, 1.0, 1.5]), settings), "a": selection_plot(decision())} for _ in range(2))
    assert first == second
    assert not re.search(rb"20\d\d-\d\d-\d\d|<dc:date>|/home/|/tmp/", b"".join(first.values()))
    assert network_plots(history([2.0, 1.0, 1.4]), settings)["entropy"] != first["entropy"]


def test_entropy_is_drawn_as_measured_with_the_lines_it_is_held_against() -> None:
    settings = read_settings('preset = "test"\ngrpo.critical_entropy = 0.25\ngrpo.alarms.entropy_share = 0.5')
    picture = network_plots(history([2.0, 1.0, 1.5]), settings)["entropy"]
    said = words(picture)
    assert {"ln(legal moves): the most there can be", "alarm: 0.5 of that", "critical: 0.25 nats"} <= set(said)
    assert "grpo/entropy: 1.5 at the end" in said
    high, low, middle = line(picture, "#0072b2")
    assert high < middle < low
    assert middle == pytest.approx((high + low) / 2, abs=1e-3)


def test_a_critical_share_is_called_one() -> None:
    settings = read_settings('preset = "test"\ngrpo.critical_entropy = 0.05\ngrpo.critical_measure = "normalised_entropy"')
    assert "critical: 0.05 of that" in words(network_plots(history([2.0, 1.0]), settings)["entropy"])


def test_a_history_that_lacks_a_metric_is_drawn_without_it() -> None:
    pictures = network_plots(history([2.0]), read_settings("test"))
    assert not [word for word in words(pictures["regret"]) if "heldout" in word]
    assert all(ElementTree.fromstring(picture.decode()) is not None for picture in pictures.values())


def test_the_selections_picture_has_each_score_with_its_interval() -> None:
    said = words(selection_plot(decision()))
    assert "Verdict: better" in said
    assert said.count("0.600 [0.500, 0.700]") == 3
    assert "0.625 [0.500, 0.700]" in said
    assert "round 1, step 900 (leaves)" in said
    assert "step 1,004 against the previous champion" not in said
    beaten = decision(previous_champion={"score": 0.55, "low": 0.5, "high": 0.6})
    assert "step 1,004 against the previous champion" in words(selection_plot(beaten))


def test_the_phases_picture_has_the_counts_on_its_bars() -> None:
    said = words(phases_plot(BOARDS))
    assert (said.count("10"), said.count("1,234")) == (3, 3)
