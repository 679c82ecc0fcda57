"""Cards: each is made, what they show is text whatever it was, and drawing them stays cheap and fails no step."""

import html
import itertools
import json
import math
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_documents import collapsed_reports, made_reports, made_results

from grpo.base.files import write_json
from grpo.board.phases import PHASES
from grpo.diagnosis.records import Event, Record
from grpo.settings.metrics import METRICS
from grpo.settings.tree import read_settings
from steps import STEPS
from steps.cards import live
from steps.cards.charts import MAX_POINTS, Line, line_chart, thinned
from steps.cards.live import LiveCard
from steps.cards.page import CardPart, Seen
from steps.finetune import card as finetune_page
from steps.names import FINDINGS, RESULTS

SETTINGS = {kind: read_settings(f"policy.kind = '{kind}'").model_dump(mode="json") for kind in ("network", "language")}
CARDS = [step for step in STEPS[1:-1] if hasattr(import_module(f"steps.{step}"), "card")]
EVIL = "<script>alert(1)</script>\n\n<img src=x onerror=alert(2)>[x](javascript:y)"


def markup(parts: list[CardPart]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def everything(step: int, *events: Event) -> Record:
    return Record(step, dict.fromkeys(METRICS, 0.5), events)


def page_of(step: str, seen: Seen) -> list[CardPart]:
    """Return the parts of a step's card."""
    return list(import_module(f"steps.{step}").card(seen))


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("step", CARDS)
def test_each_card_is_made_before_the_first_record_and_with_all_metrics(step: str, kind: str) -> None:
    begun = Seen(SETTINGS[kind])
    later = Seen(SETTINGS[kind], records=[everything(1, Event("entropy_critical", "told"))], progress=(0.5, "1 of 2 steps"))
    assert markup(page_of(step, begun)) != markup(page_of(step, later))
    assert [type(part) for part in page_of(step, begun)] == [type(part) for part in page_of(step, later)], "Metaflow would wait"


@pytest.mark.parametrize("reports", [made_reports(), collapsed_reports()], ids=["better", "collapsed"])
def test_the_cards_of_select_and_report_have_the_verdict(reports: dict[str, Any], tmp_path: Path) -> None:
    results = made_results(tmp_path, reports, origin="17/60")
    sentence = html.escape(results.decision.sentence)
    assert sentence in markup(page_of("select", Seen(SETTINGS["network"], folder=tmp_path / "outputs" / "select" / "v-select")))
    write_json(tmp_path / RESULTS, results.model_dump(mode="json"))
    reported = markup(page_of("report", Seen(SETTINGS["network"], folder=tmp_path)))
    assert sentence in reported
    assert "Resumed from step 60 of run 17" in reported


def test_whatever_is_given_is_text_on_one_line_for_an_empty_line_would_end_the_html(tmp_path: Path) -> None:
    finding = dict.fromkeys(("name", "severity", "means", "advice", "page"), EVIL) | {"evidence": [EVIL]}
    (tmp_path / FINDINGS).parent.mkdir()
    write_json(tmp_path / FINDINGS, {"findings": [finding]})
    seen = Seen(SETTINGS["network"], folder=tmp_path, failure=EVIL, records=[Record(1, {}, (Event("finding", EVIL),))])
    shown = markup(finetune_page(seen))
    assert not any(bad in shown for bad in ("<script", "<img", "\n", "]("))
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt; &lt;img") == 8


def test_a_thinned_line_keeps_its_ends_its_lowest_and_highest_points_and_its_order() -> None:
    values = pd.Series(np.random.default_rng(1).random(5_000))
    values[3_333], values[777] = 9.0, -9.0
    kept = thinned(values)
    assert len(kept) <= MAX_POINTS
    assert {0, 777, 3_333, 4_999} <= set(kept.index)
    assert kept.index.is_monotonic_increasing
    values[9] = math.nan
    chart = json.dumps(line_chart("a", "nats", [Line(label="b", values=values, colour="#000")]))
    assert "NaN" not in chart
    assert len(chart) < 100_000


class Card:
    """Metaflow's card, with a count of its refreshes, which breaks when so many things have been put on it."""

    def __init__(self, num_sound: float = math.inf) -> None:
        self.components: list[Any] = []
        self.num_refreshes = 0
        self.num_sound = num_sound

    def append(self, component: Any, id: str) -> None:  # noqa: A002
        self.refresh()
        self.components.append(component)

    def refresh(self) -> None:
        self.num_refreshes += 1
        if len(self.components) >= self.num_sound:
            raise ConnectionError("no room for a card")


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
    shown = LiveCard("train", lambda seen: [str(seen)], SETTINGS["network"])
    times: list[float] = []
    for tick in range(5_000):
        clock.now, before = tick / 2, card.num_refreshes
        shown.progress(tick, 5_000, "steps")
        times += [clock.now] * (card.num_refreshes > before)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 1.99
    assert gaps[-1] == pytest.approx(30, abs=1)


def test_parts_are_updated_in_place(card: Card, clock: SimpleNamespace) -> None:
    shown = LiveCard("train", finetune_page, SETTINGS["network"])
    clock.now = 3.0
    shown.log(everything(1))
    first = list(card.components)
    clock.now = 6.0
    shown.log(Record(2, {f"grpo/entropy/{phase}": 0.125 for phase in PHASES}))
    assert [id(component) for component in card.components] == [id(component) for component in first]
    assert "0.125" in str([vars(component) for component in first])


@pytest.mark.parametrize("num_sound", [0, 3])
def test_a_card_that_breaks_is_told_once_and_never_drawn_again(
    num_sound: int, card: Card, clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    card.num_sound = num_sound
    shown = LiveCard("train", finetune_page, SETTINGS["network"])
    for step in range(1, 4):
        clock.now += 60
        shown.log(Record(step, {"grpo/entropy": 2.0}))
    assert len(card.components) == num_sound
    assert capsys.readouterr().out.count("card train: WARNING: ConnectionError: no room for a card") == 1
