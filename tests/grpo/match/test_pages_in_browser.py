"""The game viewer and the play page in a browser: on a desk and on a phone, in light and dark, without a network."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chess
import pytest
from doubles import CPU, TINY
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from grpo.base.seeding import numpy_stream
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.match.annotations import annotate
from grpo.match.human_game import HumanGame
from grpo.match.matches import play_match
from grpo.match.page_server import PlayServer
from grpo.match.players import BestMovePlayer, RandomPlayer
from grpo.match.viewer import viewer_page
from grpo.policy.policy import new_policy
from steps.policies.network import NetworkCompetitor

pytestmark = pytest.mark.prove
OPENINGS = [chess.STARTING_FEN, "r3k2r/pppq1ppp/8/8/8/8/PPPQ1PPP/R3K2R b KQkq - 0 12", "8/P6k/8/8/8/8/p6K/8 b - - 0 50"]
screens = pytest.mark.parametrize(("width", "is_dark"), [(1440, False), (390, True)])


class Page:
    """The one tab of a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        errors = "window.failures = []; addEventListener('error', (event) => failures.push(event.message));"
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": errors})

    def open(self, address: str, *, width: int, is_dark: bool) -> None:
        """Open an address on a screen of this width, in light or dark mode; a narrow one is a phone."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(address)

    def wait_for(self, *texts: str) -> None:
        """Wait until all of these can be read."""
        wait = WebDriverWait(self.driver, 60, ignored_exceptions=[StaleElementReferenceException])
        wait.until(lambda driver: all(text in driver.find_element(By.TAG_NAME, "body").text for text in texts), str(texts))

    def find(self, css: str) -> list[WebElement]:
        """Return the elements of a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def click(self, text: str) -> None:
        """Click the button or the square with exactly this text or name."""
        path = f"//*[self::button or @data-square][normalize-space(.)='{text}' or @aria-label='{text}']"
        found = [element for element in self.driver.find_elements(By.XPATH, path) if element.is_displayed()]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found[-1])
        found[-1].click()

    def run(self, script: str) -> object:
        """Return what a script returns in the page."""
        result: object = self.driver.execute_script(script)
        return result

    def check(self, width: int, *, is_dark: bool) -> None:
        """Check that nothing failed, that the page is no wider than the screen, as dark as asked, and that each button has a name."""
        assert self.run("return failures") == []
        assert self.run(f"return document.documentElement.scrollWidth <= {width}")
        red = "getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"
        assert self.run(f"return Number({red}) < 100") == is_dark
        assert self.run("return [...document.querySelectorAll('button')].every((each) => each.textContent || each.ariaLabel)")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        pytest.skip("no Chromium: `sudo apt-get install chromium chromium-driver`")
    options = Options()
    options.binary_location = browser
    profile = tmp_path_factory.mktemp("profile")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    # Named, or selenium looks for a driver on the network.
    with webdriver.Chrome(options=options, service=Service(chromedriver)) as driver:
        yield Page(driver)


@pytest.fixture(scope="module")
def policy() -> NetworkCompetitor:
    return NetworkCompetitor(new_policy(TINY, seed=1, device=CPU))


@pytest.fixture(scope="module")
def viewer(stockfish: str, policy: NetworkCompetitor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a viewer: six games of a tiny policy against a random mover."""
    player = BestMovePlayer(policy.policy, "<b>tiny</b>")
    result = play_match(player, RandomPlayer(numpy_stream(0, "x")), OPENINGS, max_plies=24)
    with EnginePool(stockfish, num_processes=1, options=engine_options()) as pool:
        games = annotate(result, (policy.move_probabilities, None), pool, depth=1)
    path = tmp_path_factory.mktemp("viewer") / "games.html"
    path.write_text(viewer_page(result, games, title="Six </script> games", event="test"), encoding="utf-8")
    return path


@screens
def test_the_viewer_goes_through_games_by_buttons_keys_moves_and_curve(viewer: Path, page: Page, width: int, is_dark: bool) -> None:
    page.open(viewer.as_uri(), width=width, is_dark=is_dark)
    page.wait_for("Six </script> games", "<b>tiny</b>", "Start; ")
    assert len(page.find("#games button")) == 6
    assert len(page.find("#board .square")) == 64
    page.click("Next move")
    page.wait_for("Ply 1 of ")
    moves = page.find("#moves button")
    moves[-1].click()
    page.wait_for(f"Ply {len(moves)} of {len(moves)}", "The game is over")
    page.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft'}))")
    page.wait_for(f"Ply {len(moves) - 1} of {len(moves)}", "(played)")
    page.click("Previous move")
    assert page.run("return document.querySelector('.curve .line').points.numberOfItems") == len(moves) + 1
    assert len(page.find("#board .arrows line")) >= 1
    page.find("#games button")[5].click()
    page.wait_for("Start; ")
    page.check(width, is_dark=is_dark)


@contextmanager
def served(policy: NetworkCompetitor, *fens: str) -> Iterator[tuple[str, list[HumanGame]]]:
    """Give the address of a play page, whose games start from these positions, and the games that were finished."""
    finished: list[HumanGame] = []
    player, starts = BestMovePlayer(policy.policy, "tiny"), iter(fens)

    def new_game(white: bool | None) -> HumanGame:
        return HumanGame(
            lambda board: player.choose([board], [0])[0],
            opponent="tiny",
            person_is_white=white is not False,
            fen=next(starts),
            probabilities=policy.move_probabilities,
        )

    server = PlayServer(new_game, on_finished=finished.append)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.address, finished
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@screens
def test_promotion_hints_a_new_game_and_resignation_work(policy: NetworkCompetitor, page: Page, width: int, is_dark: bool) -> None:
    with served(policy, "7k/P7/6K1/8/8/8/8/8 w - - 0 1", chess.STARTING_FEN) as (address, finished):
        page.open(address, width=width, is_dark=is_dark)
        page.wait_for("You (White) against tiny", "Your move")
        page.click("Hint")
        page.wait_for("Its probabilities for your move")
        page.click("a7 white pawn")
        page.click("a8")
        page.click("queen")
        page.wait_for("1-0: checkmate")
        assert [game.sans() for game in finished] == [["a8=Q#"]]
        page.find("#color")[0].send_keys("Black")
        page.click("New game")
        page.wait_for("You (Black) against tiny", "The policy's probabilities for its last move")
        assert page.find("#board .square")[0].text.startswith("1"), "seen from Black's side"
        page.click("e7 black pawn")
        assert {square.get_attribute("data-square") for square in page.find(".square.target")} <= {"e6", "e5", "d6", "f6"}
        page.click("e7 black pawn")
        page.click("Resign")
        page.driver.switch_to.alert.dismiss()
        assert page.find("#status")[0].text == "Your move."
        ActionChains(page.driver).drag_and_drop(*(page.find(f"[aria-label='{label}']")[0] for label in ("e7 black pawn", "e5"))).perform()
        page.wait_for("e5")
        page.click("Resign")
        page.driver.switch_to.alert.accept()
        page.wait_for("1-0: black resigned")
        page.check(width, is_dark=is_dark)
