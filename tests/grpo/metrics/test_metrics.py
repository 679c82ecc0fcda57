"""The table of metrics: complete, unambiguous, and the only names there are."""

import re
from pathlib import Path

import pytest

from grpo.board.phases import PHASES
from grpo.metrics.page import UNITS, grouped, metrics_page
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


def lines_of(part: str) -> list[str]:
    """Return the rows of a table, without its header."""
    return [line for line in part.splitlines() if line.startswith("| `")]


def test_the_page_has_one_row_for_each_metric_in_the_order_of_the_table_and_one_for_each_event() -> None:
    metrics, events = metrics_page().replace(r"\|", "|").split("\n## Events\n")
    assert lines_of(metrics) == [f"| `{spec.name}` | {spec.unit} | {spec.better} | {spec.meaning} |" for spec in METRICS.values()]
    assert lines_of(events) == [f"| `{name}` | {meaning} |" for name, meaning in EVENTS.items()]
    for part, bars in ((metrics, 5), (events, 3)):
        header, rule = [line for line in part.splitlines() if line.startswith("| ")][:2]
        assert header.count("|") == rule.count("|") == bars


def test_every_metric_is_in_one_group_of_its_own_kind() -> None:
    groups = list(grouped())
    assert [spec.name for _, specs in groups for spec in specs] == list(METRICS)
    assert len({group.title for group, _ in groups}) == len(groups)
    for group, specs in groups:
        assert len({spec.name.split("/")[0] for spec in specs}) == 1, f"{group.title} mixes kinds: a metric has moved in the table"


def test_every_unit_is_explained_or_a_thing_that_is_counted() -> None:
    counted = {"boards", "expectations", "findings", "games", "kinds", "moves", "plies", "positions", "searches", "states", "steps"}
    counted |= {"times", "per second", "tokens", "prompts", "runs"}
    units = {spec.unit.partition(" of ")[0] if spec.unit.startswith("fraction") else spec.unit for spec in METRICS.values()}
    assert units - counted == set(UNITS)


def test_the_page_in_the_docs_is_the_present_one() -> None:
    assert (Path(__file__).parents[3] / "docs" / "metrics.md").read_text() == metrics_page()
