"""Draws the pictures of README and tutorial: `python -m infra.pictures RUN`, in the folder where the run was started.

Needs Chromium and chromedriver.
"""

import base64
import io
import shutil
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Final

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import presence_of_element_located
from selenium.webdriver.support.wait import WebDriverWait

from infra.pages import DOCS
from steps.names import GAMES_PAGE
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import find_run

PICTURES: Final = DOCS / "pictures"
_COMMAND: Final = (sys.executable, "-m", "steps.cli.main")
_SECONDS_TO_DRAW: Final = 3


def draw(
    driver: webdriver.Chrome, address: str, size: tuple[int, int], picture: str, *, below: str = "", clicks: tuple[str, ...] = ()
) -> None:
    """Write a picture of a page to the file `picture` in `PICTURES`. `clicks`: CSS selectors to click first.

    `size` is width and height in pixels. The picture begins at the page's top, or at the heading that begins with `below`.
    """
    driver.set_window_size(*size)
    driver.get(address)
    for selector in (*clicks, "h1, h2"):
        element = WebDriverWait(driver, 60).until(presence_of_element_located((By.CSS_SELECTOR, selector)))
        if selector in clicks:
            element.click()
        sleep(_SECONDS_TO_DRAW)
    script = "const found = [...document.querySelectorAll('h1, h2')].find((each) => each.textContent.startsWith(arguments[0]));"
    top = driver.execute_script(f"{script} return arguments[0] ? found.getBoundingClientRect().top - 12 : 0", below)
    clip = {"x": 0, "y": top, "width": size[0], "height": size[1], "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    Image.open(io.BytesIO(base64.b64decode(shot["data"]))).quantize(256).save(PICTURES / picture, optimize=True)


def main(name: str) -> None:
    machine = Machine.here()
    store = Store.of(machine)
    run = find_run(name, store)
    output = run.output_of("select")
    assert output is not None, f"run {run.name} has no output of `select`: let it finish first"
    cards = {}
    for step in ("select", "finetune", "report"):
        subprocess.run([*_COMMAND, "card", f"{run.name}/{step}"], check=True)
        cards[step] = max((machine.home / "cards").glob(f"*-{step}.html"), key=lambda path: path.stat().st_mtime).as_uri()
    options = Options()
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    play = subprocess.Popen([*_COMMAND, "play", run.name], stdout=subprocess.PIPE, text=True)
    try:
        assert play.stdout is not None
        address = next(word for line in play.stdout for word in line.split() if word.startswith("http"))
        squares = tuple(f"[data-square='{square}']" for square in ("e2", "e4"))
        # Without a path, selenium would look for a driver on the network.
        with webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))) as driver:
            draw(driver, cards["report"], (1280, 860), "card_decision.png")
            draw(driver, cards["select"], (1280, 510), "card_moves.png", below="Boards")
            draw(driver, cards["finetune"], (1280, 1800), "card_train.png")
            draw(driver, Path(f"{store.place(output)}/{GAMES_PAGE}").as_uri(), (1000, 780), "games_viewer.png")
            draw(driver, address, (1000, 727), "play_page.png", clicks=(*squares, "#hint"))
    finally:
        play.terminate()


if __name__ == "__main__":
    main(sys.argv[1])
