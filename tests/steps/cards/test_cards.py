"""Cards: each is made, what they show is text whatever it was, and drawing them stays cheap; tests/flows has that none fails its step."""

import html
import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_results import made_reports, made_results, write_outputs
from metaflow.plugins.cards.component_serializer import ComponentStore

from grpo.base.files import write_json
from grpo.board.phases import PHASES
from grpo.metrics.table import METRICS, Event, Record
from grpo.settings.tree import read_settings
from grpo.statistics.intervals import Estimate, Unit
from steps.cards import live
from steps.cards.charts import MAX_POINTS, ChartLine, Interval, interval_figure, line_chart, thinned
from steps.cards.html import CardPart, Chart, Html, html_table, paragraph, progress_bar
from steps.cards.registry import PAGES, watch
from steps.cards.report_page import end_page
from steps.cards.state import Seen
from steps.cards.training_pages import draw_findings, finetune_page
from steps.step_io.names import RESULTS
from steps.step_io.spec import StepSpan

SETTINGS = {kind: read_settings(f"policy.kind = '{kind}'").model_dump(mode="json") for kind in ("network", "language")}
EVIL = "<script>alert(1)</script>\n\n<img src=x onerror=alert(2)>[x](javascript:y)"


def markup(parts: list[CardPart]) -> str:
    return "".join(part.markup for part in parts if isinstance(part, Html))


def everything(step: int, *events: Event) -> Record:
    return Record(step, dict.fromkeys(METRICS, 0.5), events)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("step", PAGES)
def test_each_card_is_made_before_the_first_record_and_with_all_metrics(step: str, kind: str) -> None:
    page = PAGES[step][1]
    begun, later = Seen(SETTINGS[kind]), Seen(SETTINGS[kind], records=[everything(1, Event("entropy_critical", "told"))])
    later.progressed(1, 2, "steps")
    later.learnability = {"severity": "warning", "findings": []}
    assert markup(list(page(begun))) != markup(list(page(later)))
    assert [type(part) for part in page(begun)] == [type(part) for part in page(later)], "a new layout would make Metaflow wait"


def test_the_cards_of_select_report_and_end_have_the_verdict(tmp_path: Path) -> None:
    results = made_results(tmp_path)
    selected = Seen(SETTINGS["network"], folder=write_outputs(tmp_path / "again", made_reports())["select"])
    assert html.escape(results["verdict"]) in markup(list(PAGES["select"][1](selected)))
    write_json(tmp_path / RESULTS, results)
    verdict = html.escape(results["verdict"])
    assert verdict in markup(list(PAGES["report"][1](Seen(SETTINGS["network"], folder=tmp_path))))
    spans = [StepSpan(name="build_boards", num_tasks=2, state="reused", begin=0.0, end=5.0)]
    shown = markup(end_page(results, spans, {"MLflow run": "http://127.0.0.1:5000/#/experiments/1/runs/ab"}))
    assert verdict in shown
    assert "<td>build_boards (2 tasks)</td>" in shown
    assert '<a href="http://127.0.0.1:5000/#/experiments/1/runs/ab"' in shown


@pytest.mark.parametrize(
    "made",
    [
        paragraph(EVIL),
        html_table([EVIL], [[EVIL, 1.0]], caption=EVIL),
        progress_bar(1, 2, EVIL),
        draw_findings([dict.fromkeys(("name", "severity", "cause", "remedy", "page"), EVIL) | {"evidence": [EVIL]}]).markup,
    ],
)
def test_whatever_is_given_is_text_on_one_line_for_an_empty_line_would_end_the_html(made: str) -> None:
    assert not any(bad in made for bad in ("<script", "<img", "\n", "]("))
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &lt;img" in made


def test_a_thinned_line_keeps_its_ends_its_lowest_and_highest_points_and_its_order() -> None:
    rng = random.Random(1)
    points = [(float(step), rng.random()) for step in range(5_000)]
    points[3_333], points[777], points[9] = (3_333.0, 9.0), (777.0, -9.0), (9.0, math.nan)
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS
    assert {points[0], points[-1], (3_333.0, 9.0), (777.0, -9.0)} <= set(kept)
    assert kept == sorted(kept)
    assert isinstance(line_chart("a", "nats", [ChartLine(label="b", points=points, colour="#000")]), Chart)


def test_an_interval_has_its_numbers_beside_its_bar() -> None:
    one = Interval(label="one", estimate=Estimate(value=53.0, low=-75.0, high=212.0), kind="games", is_ringed=True)
    assert f"{one.estimate.text(Unit.ELO)} (peak)" in interval_figure("gain", Unit.ELO, [one], zero="even").markup


class Card:
    """Metaflow's card, with a count of its refreshes."""

    def __init__(self) -> None:
        self.components = ComponentStore(None)
        self.append = self.components.append
        self.num_refreshes = 0

    def refresh(self) -> None:
        self.num_refreshes += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give a clock that stands still until it is moved."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    return made


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    made = Card()
    monkeypatch.setattr(live, "current", SimpleNamespace(card={"train": made}))
    return made


def test_a_card_is_refreshed_no_more_than_every_two_seconds_and_ever_more_rarely(card: Card, clock: SimpleNamespace) -> None:
    shown = watch("finetune", SETTINGS["network"])
    times: list[float] = []
    for tick in range(5_000):
        clock.now, before = tick / 2, card.num_refreshes
        shown.progress(tick, 5_000, "steps")
        times += [clock.now] * (card.num_refreshes - before)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 1.99
    assert gaps[-1] == pytest.approx(30, abs=1)


def test_parts_are_updated_in_place(card: Card, clock: SimpleNamespace) -> None:
    shown = watch("finetune", SETTINGS["network"])
    clock.now = 3.0
    shown.log(everything(1))
    first: list[Any] = list(card.components)
    assert len(first) == 1 + len(finetune_page(shown.seen))
    clock.now = 6.0
    shown.log(Record(2, {f"grpo/entropy/{phase}": 0.125 for phase in PHASES}))
    assert [id(component) for component in card.components] == [id(component) for component in first]
    assert "0.125" in str([vars(component) for component in first])
