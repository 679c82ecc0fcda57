"""The real run's cards in a real browser that reaches nothing: on a phone, in light and dark."""

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_flow import FlowRun

BROWSER, DRIVER = "chromium", "chromedriver"
STEPS = {"check_boards": "boards", "baseline": "baseline", "finetune": "train", "select": "decision", "report": "report"}
PHONE = 390
_SEEN = """
const scrolling = [...document.querySelectorAll(".mf-card *")].filter(
    part => part.getBoundingClientRect().right > innerWidth + 1 && !part.closest(".scroll") && !part.closest("svg")
);
return {
    width: document.documentElement.scrollWidth,
    wide: scrolling.map(part => part.className),
    charts: [...document.querySelectorAll("svg.marks")].map(chart => chart.getBoundingClientRect().width),
    lines: document.querySelectorAll("svg.marks path[stroke], svg.marks path[fill]").length,
    words: [...document.querySelectorAll(".vega-embed")].map(chart => chart.ariaLabel),
    boards: [...document.images].map(picture => [picture.naturalWidth, picture.alt.length]),
    ground: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector("h1, h2")).color,
    strangers: [...document.querySelectorAll(".mf-card a[href], .mf-card script")].length,
};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a network."""
    missing = [program for program in (BROWSER, DRIVER) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: install them (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which(BROWSER))
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    arguments += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]
    for argument in arguments:
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which(DRIVER)), env=dict(os.environ)))
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(first_run: FlowRun) -> dict[str, Path]:
    """The cards' files, by id."""
    root = first_run.home.parent / ".metaflow" / "mf.cards" / "ChessGrpo" / "runs" / first_run.run_id / "steps"
    return {card: next(root.glob(f"{step}/tasks/*/cards/blank-{card}-*.html")) for step, card in STEPS.items()}


def looked_at(browser: Any, page: Path, *, scheme: str, num_charts: int) -> dict[str, Any]:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    phone = {"width": PHONE, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda driver: len(driver.execute_script(_SEEN)["charts"]) == num_charts)
    return dict(browser.execute_script(_SEEN))


def brightness(colour: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("card", STEPS.values())
def test_a_card_is_read_offline_on_a_phone_and_in_the_dark(card: str, pages: dict[str, Path], browser: Any) -> None:
    [encoded] = re.findall(r'__MF_DATA__\["[^"]+"\] = "([^"]+)"', pages[card].read_text(encoding="utf-8"))
    parts = json.loads(base64.b64decode(encoded))["components"][0]["contents"][0]["contents"]
    num_charts = sum(part["type"] == "vegaChart" for part in parts)
    assert num_charts > 0
    light, dark = (looked_at(browser, pages[card], scheme=scheme, num_charts=num_charts) for scheme in ("light", "dark"))
    for seen in (light, dark):
        assert seen["width"] <= PHONE
        assert seen["wide"] == []
        assert all(200 < width <= PHONE for width in seen["charts"])
        assert seen["lines"] > num_charts
        assert all(words for words in seen["words"])
        assert all(width > 0 and words > 40 for width, words in seen["boards"])
        assert seen["strangers"] == 0
    assert brightness(light["ground"]) > 200 > 100 > brightness(light["ink"])
    assert brightness(dark["ground"]) < 50 < 200 < brightness(dark["ink"])
    assert bool(dark["boards"]) == (card in ("baseline", "decision", "report"))
