"""The real run's cards in a real browser that reaches nothing: on a phone, in light and dark."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from real_flow import FlowRun

from infra.browser import Page, browser, missing

STEPS = {
    "build_boards": "build",
    "join_boards": "join",
    "baseline": "baseline",
    "finetune": "train",
    "select": "decision",
    "report": "report",
    "end": "end",
}
LINKED = ("https://lichess.org/analysis/", "http://127.0.0.1:")
PHONE = 390
_SEEN = """
const scrolling = [...document.querySelectorAll(".mf-card *")].filter(
    part => part.getBoundingClientRect().right > innerWidth + 1 && !part.closest(".scroll") && !part.closest("svg")
);
return {
    has_title: document.querySelector(".mf-card h1") !== null,
    width: document.documentElement.scrollWidth,
    wide: scrolling.map(part => part.className),
    captions: [...document.querySelectorAll("caption")].map(caption => caption.getBoundingClientRect().right),
    charts: [...document.querySelectorAll("svg.marks")].map(chart => chart.getBoundingClientRect().width),
    lines: document.querySelectorAll("svg.marks path[stroke], svg.marks path[fill]").length,
    words: [...document.querySelectorAll(".vega-embed")].map(chart => chart.ariaLabel),
    boards: [...document.images].map(picture => [picture.naturalWidth, picture.alt.length]),
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector("h1, h2") || document.body).color,
    bars: [...document.querySelectorAll(".bar svg, .flow svg")].map(bar => bar.getBoundingClientRect().width),
    scripts: document.querySelectorAll(".mf-card script").length,
    links: [...document.querySelectorAll(".mf-card a[href]")].map(link => link.getAttribute("href")),
    anchors: [...document.querySelectorAll(".mf-card nav a")].every(link => document.querySelector(link.getAttribute("href"))),
};
"""


@pytest.fixture(scope="module")
def phone() -> Iterator[Page]:
    """A browser without a network."""
    if why := missing():
        pytest.skip(why)
    with browser() as page:
        page.go_offline()
        yield page


@pytest.fixture(scope="module")
def pages(first_run: FlowRun) -> dict[str, Path]:
    """The cards' files, by id."""
    root = first_run.home.parent / ".metaflow" / "mf.cards" / "ChessGrpo" / "runs" / first_run.run_id / "steps"
    return {card: next(root.glob(f"{step}/tasks/*/cards/blank-{card}-*.html")) for step, card in STEPS.items()}


def looked_at(page: Page, card: Path, *, is_dark: bool, num_charts: int) -> dict[str, Any]:
    page.show_on(width=PHONE, height=800, is_dark=is_dark, is_phone=True)
    page.go(card.as_uri())

    def seen() -> dict[str, Any] | None:
        found = cast(dict[str, Any], page.run(_SEEN))
        return found if found["has_title"] and len(found["charts"]) == num_charts else None

    return page.until(seen, f"draw {num_charts} charts")


def brightness(colour: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("card", STEPS.values())
def test_a_card_is_read_offline_on_a_phone_and_in_the_dark(card: str, pages: dict[str, Path], phone: Page) -> None:
    [encoded] = re.findall(r'__MF_DATA__\["[^"]+"\] = "([^"]+)"', pages[card].read_text(encoding="utf-8"))
    parts = json.loads(base64.b64decode(encoded))["components"][0]["contents"][0]["contents"]
    num_charts = sum(part["type"] == "vegaChart" for part in parts)
    light, dark = (looked_at(phone, pages[card], is_dark=is_dark, num_charts=num_charts) for is_dark in (False, True))
    for seen in (light, dark):
        assert seen["width"] <= PHONE
        assert seen["wide"] == []
        assert all(200 < width <= PHONE for width in seen["charts"])
        assert seen["lines"] >= num_charts
        assert all(right <= PHONE for right in seen["captions"]), "a sentence is not scrolled with its table"
        assert seen["charts"] or seen["bars"] or card == "build"
        assert all(60 < width <= PHONE for width in seen["bars"])
        assert all(words for words in seen["words"])
        assert all(width > 0 and words > 40 for width, words in seen["boards"])
        assert seen["scripts"] == 0
        assert seen["anchors"]
        assert all(link.startswith(("#", *LINKED)) for link in seen["links"])
    assert brightness(light["ground"]) > 200 > 100 > brightness(light["ink"])
    assert brightness(dark["ground"]) < 50 < 200 < brightness(dark["ink"])
    assert bool(dark["boards"]) == (card in ("baseline", "decision", "report"))
