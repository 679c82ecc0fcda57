"""The stop rule as a state machine."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.control import EntropyStop

ENTROPIES = st.lists(st.floats(0, 5.4), min_size=1, max_size=40)


def stops(rule: EntropyStop, entropies: list[float]) -> list[bool]:
    """Return what the rule says at each step."""
    return [rule.observe(entropy) for entropy in entropies]


def test_it_stops_when_the_mean_over_the_window_falls_below_the_critical_value() -> None:
    rule = EntropyStop(critical_nats=0.5, window=3)
    assert stops(rule, [1.0, 0.4, 0.2, 0.3]) == [False, False, False, True]  # Means of three: 0.533, then 0.3.
    assert rule.mean() == pytest.approx(0.3)


def test_it_never_stops_before_the_window_is_full_and_the_critical_value_itself_is_not_below() -> None:
    assert stops(EntropyStop(critical_nats=0.5, window=4), [0.0, 0.0, 0.0, 0.0]) == [False, False, False, True]
    assert stops(EntropyStop(critical_nats=0.5, window=2), [0.5, 0.5, 0.5, 0.25]) == [False, False, False, True]


def test_one_low_step_between_healthy_ones_stops_nothing() -> None:
    assert not any(stops(EntropyStop(critical_nats=0.5, window=5), [1.5, 1.5, 0.0, 1.5, 1.5, 1.5, 0.0, 1.5, 1.5]))


def test_a_critical_value_of_zero_never_stops() -> None:
    assert not any(stops(EntropyStop(critical_nats=0.0, window=1), [0.0] * 10))


def test_what_was_seen_before_the_window_is_forgotten() -> None:
    assert stops(EntropyStop(critical_nats=0.5, window=2), [100.0, 0.1, 0.1]) == [False, False, True]


def test_the_collapse_of_jan15_is_stopped_on_its_way_down() -> None:
    # Field notes: entropy 3.17 -> 0.71, and on to 0.04 in jan19.
    falling = [3.17 * 0.9**step for step in range(42)]
    [first, *_] = [step for step, stop in enumerate(stops(EntropyStop(critical_nats=0.5, window=10), falling)) if stop]
    assert sum(falling[first - 9 : first + 1]) / 10 < 0.5 <= sum(falling[first - 10 : first]) / 10


@settings(derandomize=True)
@given(ENTROPIES, st.integers(1, 8), st.floats(0, 2))
def test_it_says_what_the_definition_says(entropies: list[float], window: int, critical: float) -> None:
    said = stops(EntropyStop(critical_nats=critical, window=window), entropies)
    for step, stop in enumerate(said):
        recent = entropies[max(0, step - window + 1) : step + 1]
        assert stop is (len(recent) == window and sum(recent) / window < critical)


@settings(derandomize=True)
@given(ENTROPIES, st.integers(0, 40), st.integers(1, 8))
def test_saved_and_restored_at_any_step_it_goes_on_as_if_nothing_had_happened(entropies: list[float], cut: int, window: int) -> None:
    straight = stops(EntropyStop(critical_nats=1.0, window=window), entropies)
    first, second = EntropyStop(critical_nats=1.0, window=window), EntropyStop(critical_nats=1.0, window=window)
    before = stops(first, entropies[:cut])
    second.restore(json.loads(json.dumps(first.state())))
    assert before + stops(second, entropies[cut:]) == straight


def test_a_saved_state_does_not_change_when_the_rule_goes_on() -> None:
    rule = EntropyStop(critical_nats=1.0, window=3)
    rule.observe(2.0)
    saved = rule.state()
    rule.observe(1.0)
    assert saved == {"recent": [2.0]}


def test_a_restored_window_is_cut_to_the_length_of_the_settings() -> None:
    rule = EntropyStop(critical_nats=1.0, window=2)
    rule.restore({"recent": [5.0, 5.0, 5.0, 0.1]})
    assert rule.observe(0.3)
    assert rule.mean() == pytest.approx(0.2)
