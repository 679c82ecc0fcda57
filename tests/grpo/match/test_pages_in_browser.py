"""The game viewer and the play page in a browser: on a desk and on a phone, in light and dark, without a network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import chess
import pytest
from browser import Page, browser, missing
from doubles import CPU, TINY

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
SCREENS = [(1440, False), (1440, True), (390, False), (390, True)]
OPENINGS = [chess.STARTING_FEN, "r3k2r/pppq1ppp/8/8/8/8/PPPQ1PPP/R3K2R b KQkq - 0 12", "8/P6k/8/8/8/8/p6K/8 b - - 0 50"]
_ERRORS = "window.failures = []; addEventListener('error', (event) => failures.push(event.message));"
_BRIGHTNESS = (
    "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if why := missing():
        pytest.skip(why)
    with browser() as found:
        found.in_every_page(_ERRORS)
        yield found


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


def check_fits(page: Page, width: int, *, is_dark: bool) -> None:
    assert cast(int, page.run("return document.documentElement.scrollWidth")) <= width
    assert (cast(int, page.run(_BRIGHTNESS)) < 300) == is_dark
    assert page.run("return failures") == []
    unnamed = "return [...document.querySelectorAll('button')].filter((each) => !each.textContent && !each.ariaLabel).length"
    assert page.run(unnamed) == 0


@pytest.mark.parametrize(("width", "is_dark"), SCREENS)
def test_the_viewer_goes_through_games_by_buttons_keys_moves_and_curve(viewer: Path, page: Page, width: int, is_dark: bool) -> None:
    page.show_on(width=width, height=900, is_dark=is_dark, is_phone=width < 500)
    page.go(viewer.as_uri())
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
    assert len(cast(str, page.run("return document.querySelector('.curve .line').getAttribute('points')")).split()) == len(moves) + 1
    assert len(page.find("#board .arrows line")) >= 1
    page.find("#games button")[5].click()
    page.wait_for("Start; ")
    check_fits(page, width, is_dark=is_dark)


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


@pytest.mark.parametrize(("width", "is_dark"), SCREENS)
def test_promotion_hints_a_new_game_and_resignation_work(policy: NetworkCompetitor, page: Page, width: int, is_dark: bool) -> None:
    page.show_on(width=width, height=900, is_dark=is_dark, is_phone=width < 500)
    with served(policy, "7k/P7/6K1/8/8/8/8/8 w - - 0 1", chess.STARTING_FEN) as (address, finished):
        page.go(address)
        page.wait_for("You (White) against tiny", "Your move")
        page.click("Hint")
        page.wait_for("Its probabilities for your move")
        page.click("a7 white pawn")
        page.click("a8")
        page.click("queen")
        page.wait_for("1-0: checkmate")
        assert [game.sans() for game in finished] == [["a8=Q#"]]
        page.find("#color")[0].send_keys("Black")
        page.click("New game", kind="button")
        page.wait_for("You (Black) against tiny", "The policy's probabilities for its last move")
        assert page.texts("#board .square")[0].startswith("1"), "seen from Black's side"
        page.click("e7 black pawn")
        assert {square.get_attribute("data-square") for square in page.find(".square.target")} <= {"e6", "e5", "d6", "f6"}
        page.click("e7 black pawn")
        page.click("Resign")
        page.answer(is_yes=False)
        assert page.texts("#status") == ["Your move."]
        page.drag("e7 black pawn", "e5")
        page.wait_for("e5")
        page.click("Resign")
        page.answer(is_yes=True)
        page.wait_for("1-0: black resigned")
        check_fits(page, width, is_dark=is_dark)
