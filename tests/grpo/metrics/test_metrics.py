"""The table of metrics: complete, unambiguous, and the only names there are."""

import re

import pytest

from grpo.board.phases import PHASES
from grpo.metrics.table import EVENTS, METRICS, TERM_PAIRS, TERMS, Better, Event, MetricSpec, Record


@pytest.mark.parametrize("spec", METRICS.values(), ids=list(METRICS))
def test_a_metric_says_where_it_belongs_its_unit_its_direction_and_its_meaning(spec: MetricSpec) -> None:
    assert re.fullmatch(r"[a-z_]+/[a-z0-9_]+(/[a-z_]+)?", spec.name)
    assert spec.unit
    assert spec.better in Better
    assert re.fullmatch(r"[^\n]{12,}\.", spec.meaning), "a sentence"
    assert METRICS[spec.name] is spec


def test_a_metric_by_phase_exists_for_every_phase() -> None:
    parts = [name.rpartition("/") for name in METRICS if name.rpartition("/")[2] in list(PHASES)]
    families = {family for family, _, _ in parts}
    assert families >= {"boards/natural", "grpo/entropy", "heldout/regret_best"}
    assert sorted(f"{family}/{phase}" for family in families for phase in PHASES) == sorted(
        "/".join((family, phase)) for family, _, phase in parts
    )


def test_a_metric_by_term_exists_for_every_term_and_one_by_pair_for_every_pair() -> None:
    families = ("grpo/raw", "grpo/weighted", "grpo/logit_gradient", "grpo/logit_share", "grpo/parameter_gradient", "grpo/parameter_share")
    for family in families:
        assert [name for name in METRICS if name.startswith(f"{family}/")] == [f"{family}/{term}" for term in TERMS]
    for family in ("grpo/logit_cosine", "grpo/parameter_cosine"):
        pairs = [f"{family}/{one}_{other}" for one, other in TERM_PAIRS]
        assert [name for name in METRICS if name.startswith(f"{family}/")] == pairs
        assert len(set(pairs)) == 6, "no two pairs have one name"


def test_regret_should_fall_and_reward_rise_and_the_loss_says_neither() -> None:
    assert METRICS["grpo/regret"].better is METRICS["heldout/regret_best/endgame"].better is Better.LOWER
    assert METRICS["grpo/reward_mean"].better is METRICS["baseline/score_engine"].better is Better.HIGHER
    assert METRICS["grpo/loss"].better is Better.NEITHER


def test_every_end_of_an_interval_lies_beside_its_middle() -> None:
    for name, spec in METRICS.items():
        if name.endswith(("_low", "_high")):
            middle = METRICS[name.rpartition("_")[0]]
            assert (spec.unit, spec.better) == (middle.unit, middle.better)


def test_a_record_takes_declared_names_only_and_names_the_others() -> None:
    record = Record(3, {"grpo/loss": 0.5, "grpo/entropy/opening": 1.0})
    assert (record.step, record.metrics["grpo/loss"]) == (3, 0.5)
    with pytest.raises(ValueError, match=r"not declared in grpo/metrics/table.py: grpo/entropi, grpo/los$"):
        Record(3, {"grpo/los": 0.5, "grpo/loss": 0.5, "grpo/entropi": 1.0})


def test_an_event_has_a_declared_name_and_each_name_a_meaning() -> None:
    assert Event("rolled_back", "weights are those of step 3 again").message.endswith("again")
    with pytest.raises(ValueError, match=r"^event 'roled_back' is not declared in grpo/metrics/table.py$"):
        Event("roled_back", "")
    for name, meaning in EVENTS.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert re.fullmatch(r"[A-Z][^\n]{12,}\.", meaning), "a sentence"
