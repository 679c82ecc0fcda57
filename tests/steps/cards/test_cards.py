"""Cards: each is made, what they show is text whatever it was, and drawing them stays cheap and fails no step."""

import base64
import html
import itertools
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import altair
import pytest
from made_documents import made_results
from metaflow.cards import Markdown, VegaChart

from grpo.base.files import write_json
from grpo.metrics.records import Event, Record
from grpo.metrics.table import METRICS
from grpo.settings.tree import read_settings
from steps import STEPS
from steps.cards import live
from steps.cards.live import LiveCard
from steps.cards.offline import OfflineCard
from steps.cards.page import CardPart, Seen, style
from steps.finetune import card as finetune_page
from steps.names import RESULTS

SETTINGS = {kind: read_settings(f"policy.kind = '{kind}'").model_dump(mode="json") for kind in ("network", "language")}
CARDS = [step for step in STEPS[1:-1] if hasattr(import_module(f"steps.{step}"), "card")]


def markup(parts: list[CardPart]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def everything(step: int, *events: Event) -> Record:
    return Record(step, dict.fromkeys(METRICS, 0.5), events)


def page_of(step: str, seen: Seen) -> list[CardPart]:
    return list(import_module(f"steps.{step}").card(seen))


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("step", CARDS)
def test_each_card_is_made_before_the_first_record_and_with_all_metrics(step: str, kind: str) -> None:
    begun = Seen(SETTINGS[kind])
    later = Seen(SETTINGS[kind], records=[everything(1, Event("entropy_critical", "told"))], progress=(0.5, "1 of 2 steps"))
    assert markup(page_of(step, begun)) != markup(page_of(step, later))
    for chart in (part for part in page_of(step, later) if isinstance(part, dict)):
        altair.Chart.from_dict(chart)  # It checks the schema.
    assert [type(part) for part in page_of(step, begun)] == [type(part) for part in page_of(step, later)], "Metaflow would wait"


def test_select_and_report_have_the_verdict_and_no_chart_twice_and_the_report_folds_its_tables(tmp_path: Path) -> None:
    results = made_results(tmp_path)
    write_json(tmp_path / RESULTS, results.model_dump(mode="json"))
    folders = {"select": tmp_path / "outputs" / "select" / "v-select", "report": tmp_path}
    parts = {step: page_of(step, Seen(SETTINGS["network"], folder=folder)) for step, folder in folders.items()}
    titles = {step: {part["title"]["text"] for part in found if isinstance(part, dict)} for step, found in parts.items()}
    assert titles["report"] == {"Gain in Elo, by opponent", "Ladder: Elo above a random mover"}
    assert not titles["report"] & titles["select"]
    for found in parts.values():
        assert html.escape(results.decision.sentence) in markup(found)
    report = markup(parts["report"])
    assert html.escape(results.decision.strength(100)) in report
    unfolded = re.sub("<details>.*?</details>", "", report)
    assert "<table" in report
    assert "<table" not in unfolded
    assert results.outputs["select"]["output_hash"] in report
    assert results.outputs["select"]["output_hash"] not in unfolded


class Card:
    """Metaflow's card, which breaks when so many things have been put on it."""

    def __init__(self, num_sound: int) -> None:
        self.components: list[Any] = []
        self.num_sound = num_sound

    def append(self, component: Any, id: str) -> None:  # noqa: A002
        self.refresh()
        self.components.append(component)

    def refresh(self) -> None:
        if len(self.components) >= self.num_sound:
            raise ConnectionError("no room for a card")


@pytest.mark.parametrize("num_sound", [0, 3])
def test_a_card_that_breaks_is_told_once_and_never_drawn_again(
    num_sound: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "current", SimpleNamespace(card={"train": (card := Card(num_sound))}))
    monkeypatch.setattr("time.monotonic", itertools.count(step=60).__next__)
    shown = LiveCard("train", finetune_page, SETTINGS["network"])
    for step in range(1, 4):
        shown.log(Record(step, {"grpo/entropy": 2.0}))
    assert len(card.components) == num_sound
    assert capsys.readouterr().out.count("card train: WARNING: ConnectionError: no room for a card") == 1


def test_a_card_needs_no_network() -> None:
    seen = Seen(SETTINGS["network"], records=[everything(step) for step in (1, 2)])
    parts = [VegaChart(part) if isinstance(part, dict) else Markdown(part) for part in [style(), *finetune_page(seen)]]
    page = OfflineCard().render(SimpleNamespace(pathspec="ChessGrpo/1/finetune/2"), [part.render() for part in parts])
    shown = base64.b64decode(re.search(r'"([A-Za-z0-9+/=]{1000,})"', page)[1]).decode()
    assert "Curves" in shown
    asks = re.compile(r"""(?:@import|url\(|<(?:script|link|img|iframe)[^>]*(?:src|href)=)\s*(?:url\()?\\*["']?https?:""")
    for text in (page, shown):
        assert not asks.findall(text)
