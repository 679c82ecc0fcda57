"""The game viewer and the play page in a browser, on a phone in the dark, without a network."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import chess
import pytest
from doubles import CPU, TINY
from local_server import serving
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.interaction import POINTER_MOUSE, POINTER_TOUCH
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from grpo.base.seeding import numpy_stream
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.match.matches import play_match
from grpo.match.players import RandomPlayer
from grpo.match.policy_players import BestMovePlayer
from grpo.policy.policy import new_policy
from grpo.viewer.annotations import annotate
from grpo.viewer.human_game import HumanGame
from grpo.viewer.page import viewer_page
from grpo.viewer.page_server import PlayServer
from steps.common.policies.network import NetworkCompetitor

pytestmark = pytest.mark.prove
OPENINGS = [chess.STARTING_FEN, "r3k2r/pppq1ppp/8/8/8/8/PPPQ1PPP/R3K2R b KQkq - 0 12", "8/P6k/8/8/8/8/p6K/8 b - - 0 50"]
WIDTH = 390
POLICY = NetworkCompetitor(new_policy(TINY, seed=1, device=CPU))


class Page:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        errors = "window.failures = []; addEventListener('error', (event) => failures.push(event.message));"
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": errors})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self._resize(WIDTH, 900)

    def _resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    @contextmanager
    def screen(self, width: int, height: int) -> Iterator[None]:
        self._resize(width, height)
        yield
        self._resize(WIDTH, 900)

    def until(self, is_so: Callable[[], bool]) -> None:
        WebDriverWait(self.driver, 60).until(lambda _: is_so())

    def wait_for(self, *texts: str) -> None:
        wait = WebDriverWait(self.driver, 60, ignored_exceptions=[StaleElementReferenceException])
        wait.until(lambda driver: all(text in driver.find_element(By.TAG_NAME, "body").text for text in texts), str(texts))

    def find(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def click(self, text: str) -> None:
        """Click the button or the square with exactly this text or name."""
        path = f"//*[self::button or @data-square][normalize-space(.)='{text}' or @aria-label='{text}']"
        found = [element for element in self.driver.find_elements(By.XPATH, path) if element.is_displayed()]
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", found[-1])
        found[-1].click()

    def middle(self, square: str) -> tuple[int, int]:
        place = self.find(f"#board [data-square={square}]")[0].rect
        return int(place["x"] + place["width"] / 2), int(place["y"] + place["height"] / 2)

    def disabled(self) -> list[str]:
        return [each.get_attribute("id") or "" for each in self.find(".row button:disabled")]

    def run(self, script: str) -> object:
        result: object = self.driver.execute_script(script)
        return result

    def check(self) -> None:
        """Check that nothing failed, that the page is no wider than the screen, dark, and that each button has a name."""
        assert self.run("return failures") == []
        assert self.run(f"return document.documentElement.scrollWidth <= {WIDTH}")
        assert self.run("return Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) < 100")
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


def test_the_viewer_goes_through_games_by_buttons_keys_moves_and_curve(page: Page, stockfish: str, tmp_path: Path) -> None:
    result = play_match(BestMovePlayer(POLICY.policy, "<b>tiny</b>"), RandomPlayer(numpy_stream(0, "x")), OPENINGS, max_plies=24)
    with EnginePool(stockfish, num_processes=1, options=engine_options()) as pool:
        games = annotate(result, (POLICY.move_probabilities, None), pool, depth=1)
    viewer = tmp_path / "games.html"
    viewer.write_text(viewer_page(result, games, title="Six </script> games", event="test"), encoding="utf-8")
    page.driver.get(viewer.as_uri())
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
    page.check()


def new_server(finished: list[HumanGame], *starts: str) -> PlayServer:
    player, left = BestMovePlayer(POLICY.policy, "tiny"), iter(starts)

    def new_game(white: bool | None) -> HumanGame:
        return HumanGame(
            lambda board: player.choose([board], [0])[0],
            opponent="tiny",
            about="It is strong.",
            person_is_white=white is not False,
            fen=next(left),
            probabilities=POLICY.move_probabilities,
        )

    return PlayServer(new_game, on_finished=lambda played: finished.append(played) or "")


def test_moves_promotion_hints_a_new_game_and_resignation_work(page: Page) -> None:
    finished: list[HumanGame] = []
    with serving(server := new_server(finished, "7k/P7/6K1/8/8/8/8/8 w - - 0 1", chess.STARTING_FEN, chess.STARTING_FEN)):
        page.driver.get(server.address)
        page.wait_for("You (White) against tiny", "It is strong.", "Your move")
        assert page.disabled() == ["undo"]
        page.click("Hint")
        page.wait_for("The policy's probabilities for your move")
        page.click("a7 white pawn")
        page.click("a8")
        assert [each.accessible_name for each in page.find("#promotion button")] == ["queen", "knight", "rook", "bishop"]
        ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
        page.until(lambda: not page.find("#board .from"))
        assert not server.game.board.move_stack, "Escape plays nothing"
        page.click("a7 white pawn")
        page.click("a8")
        page.click("rook")
        page.wait_for("1-0: checkmate")
        assert [game.sans() for game in finished] == [["a8=R#"]]
        assert page.disabled() == ["undo", "hint", "resign"]
        page.find("#color")[0].send_keys("Black")
        page.click("New game")
        page.wait_for("You (Black) against tiny", "The policy's probabilities for its last move")
        assert page.find("#board .square")[0].text.startswith("1"), "seen from Black's side"
        page.click("e7 black pawn")
        page.click("e5")
        page.wait_for("e5")
        page.click("New game")
        page.click("Keep playing")
        assert server.game.sans()[1] == "e5"
        page.click("New game")
        page.click("New game")
        page.wait_for("Your move.")
        page.until(lambda: len(server.game.board.move_stack) == 1)
        page.click("Resign")
        page.click("Keep playing")
        assert not server.game.end
        page.click("Resign")
        page.click("Resign")
        page.wait_for("1-0: black resigned")
        page.check()


@pytest.mark.parametrize("kind", [POINTER_MOUSE, POINTER_TOUCH])
def test_a_piece_follows_the_pointer_and_is_dropped_where_it_is_let_go(page: Page, kind: str) -> None:
    with serving(server := new_server([], chess.STARTING_FEN)):
        page.driver.get(server.address)
        page.wait_for("Your move")

        # Where the middle of the piece is after each move of the pointer.
        page.run(
            "window.places = []; document.addEventListener('pointermove', () => { const piece = document.querySelector('.held');"
            " if (!piece) return; const {left, top, width} = piece.getBoundingClientRect();"
            " places.push(document.elementFromPoint(left + width / 2, top + width / 2).dataset.square); })"
        )

        def drag(*squares: str) -> None:
            hand = ActionBuilder(page.driver, mouse=PointerInput(kind, kind), duration=20)
            hand.pointer_action.move_to_location(*page.middle(squares[0])).pointer_down()
            for square in squares[1:]:
                hand.pointer_action.move_to_location(*page.middle(square))
            hand.pointer_action.pointer_up()
            hand.perform()

        drag("e2", "d3", "c5")
        assert page.run("return places") == ["d3", "c5"]
        assert page.run("return document.querySelectorAll('.held').length") == 0, "back on its square"
        assert not server.game.board.move_stack
        drag("e2", "d3", "e4")
        page.wait_for("e4")
        assert server.game.sans()[0] == "e4"
        page.check()


@pytest.mark.parametrize(("width", "height", "least"), [(1_920, 1_080, 800), (390, 844, 350), (844, 390, 288)])
def test_the_board_uses_the_screen_and_stays_on_it(page: Page, width: int, height: int, least: int) -> None:
    with serving(server := new_server([], chess.STARTING_FEN)), page.screen(width, height):
        page.driver.get(server.address)
        page.wait_for("Your move")
        board = page.find("#board")[0].rect
        assert least <= board["width"] == board["height"] <= width
        assert page.run("return document.documentElement.scrollWidth") <= width
        if height > 600:
            assert page.find("#new")[0].rect["y"] + page.find("#new")[0].rect["height"] <= height, "its buttons are on the screen too"
