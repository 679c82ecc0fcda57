"""Takes the screenshots of the documentation, `docs/pictures/*.png`: MLflow's pages, game viewer, play page, and cards of a run.

python -m infra.pictures [HOME] [--run RUN]   (`make pictures`; HOME is the home of a finished run, by default `.chess_grpo`)
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final

import chess
import torch
from PIL import Image

from grpo.base.errors import PlainError
from grpo.play.human_game import HumanGame
from grpo.play.page_server import PlayServer
from grpo.play.replies import Reply
from infra.browser import Page, browser
from infra.mlflow_server import mlflow_ui
from steps.policies.open import open_policy
from steps.step_io.aliases import CHAMPION
from steps.step_io.names import GAMES_PAGE
from steps.tracking.addresses import run_address, runs_address
from steps.tracking.registry import MODEL

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
MAX_BYTES: Final = 150_000
_NUM_COLOURS: Final = 96
_WIDTH: Final = 1280
_SECONDS_OF_DRAWING: Final = 2.0
_HEIGHTS: Final = {"boards": 900, "baseline": 1250, "train": 2100, "decision": 900, "report": 900}
"""Card -> height of its screenshot in pixels, from the top."""
_HEIGHT_OF_MOVES: Final = 1000
_TO_MOVES: Final = """\
const found = [...document.querySelectorAll('h2')].find(each => each.textContent.startsWith('Boards: decisions'));
if (found) found.scrollIntoView();
return Boolean(found);
"""
_CARDS: Final = ".metaflow/mf.cards/*/runs/*/steps/*/tasks/*/cards/*.html"
_NAMELESS: Final = """\
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode())
    walker.currentNode.nodeValue = walker.currentNode.nodeValue.replaceAll(arguments[0], '.chess_grpo');
"""
"""Replaces the home's path by its default name, so that no machine's paths are visible."""


class PictureError(PlainError, RuntimeError):
    """There is no run to take pictures of, or a picture is too large; the message says what to do."""


def draw_tracking(page: Page, address: str, client: Any, *, home: Path, metaflow_run: str = "") -> None:
    """Take pictures of MLflow's pages: table of runs, parent run, charts and the registered model."""
    experiment = client.get_experiment_by_name("chess-grpo")
    if experiment is None:
        raise PictureError("the store has no run: start one (`make run CONFIG=smoke`), or give the home of one")

    def found(step: str) -> str:
        condition = f"tags.`chess_grpo.step` = '{step}'" + (f" and tags.`metaflow.run` = '{metaflow_run}'" if metaflow_run else "")
        runs = client.search_runs([experiment.experiment_id], condition, max_results=1)
        if not runs:
            raise PictureError(f"no run has ended its step {step}: let one finish first")
        return str(runs[0].info.run_id)

    def go(place: str, *wanted: str) -> None:
        page.go("about:blank")
        page.go(place)
        page.wait_for(*wanted)

    go(runs_address(address, experiment.experiment_id), "matching run", "Created")
    _draw(page, "mlflow_runs", height=640)
    go(run_address(address, experiment.experiment_id, found("flow")), "Show more")
    page.click("Show more")
    page.run(_NAMELESS, str(home))
    _draw(page, "mlflow_parent", height=1150)
    curves = run_address(address, experiment.experiment_id, found("finetune")).replace("?", "/model-metrics?")
    go(curves, "1 reward gain")
    _draw(page, "mlflow_charts", height=800)
    go(f"{address}/#/models/{MODEL}", "champion", "peak")
    _draw(page, "mlflow_model", height=760)


def draw_cards(page: Page, folder: Path) -> None:
    """Take pictures of the top of the latest run's cards, below a folder with Metaflow's datastore."""
    # TYPE-ID-HASH.html
    newest = {path.stem.split("-")[1]: path for path in sorted(folder.glob(_CARDS), key=lambda each: each.stat().st_mtime)}
    page.go_offline()
    for name in newest.keys() & _HEIGHTS.keys():
        page.go(newest[name].as_uri())
        _draw(page, f"card_{name}", height=_HEIGHTS[name])
        if name == "decision":
            page.show_on(width=_WIDTH, height=_HEIGHT_OF_MOVES)
            page.until(lambda: page.run(_TO_MOVES), "have boards of decisions")
            _draw(page, "card_moves", height=_HEIGHT_OF_MOVES)


def draw_games(page: Page, home: Path) -> None:
    """Take pictures of the latest game viewer in the middle of its first game, and of the play page after two moves."""
    viewers = sorted((home / "outputs" / "select").glob(f"*/{GAMES_PAGE}"), key=lambda each: each.stat().st_mtime)
    if not viewers:
        raise PictureError(f"{home} has no game viewer: let a run finish its step select first")
    page.go(viewers[-1].as_uri())
    moves = page.find("#moves button")
    moves[len(moves) // 2].click()
    _draw(page, "games_viewer", height=920)
    champion = open_policy(viewers[-1].parent / CHAMPION, torch.device("cpu"))
    player = champion.best_player("champion", seed=0, stream=("pictures",))

    def new_game(_: bool | None) -> HumanGame:
        def choose(board: chess.Board) -> chess.Move | None:
            [answer] = player.choose([board], [0])
            return answer.move if isinstance(answer, Reply) else answer

        return HumanGame(choose, opponent="champion", person_is_white=True, probabilities=champion.move_probabilities)

    server = PlayServer(new_game, on_finished=lambda _: None)
    serving = Thread(target=server.serve)
    serving.start()
    try:
        page.go(server.address)
        for start, end in (("e2", "e4"), ("g1", "f3")):
            page.find(f"[data-square={start}]")[0].click()
            page.find(f"[data-square={end}]")[0].click()
            page.wait_for("Your move")
        page.click("Hint")
        page.wait_for("Its probabilities for your move")
        page.find("[data-square=f1]")[0].click()
        _draw(page, "play_page", height=760)
    finally:
        server.close()
        serving.join()


def _draw(page: Page, name: str, height: int) -> None:
    path = page.picture(FOLDER / f"{name}.png", width=_WIDTH, height=height, seconds=_SECONDS_OF_DRAWING)
    # Text and lines have few colours; a palette makes the file a third as large.
    Image.open(path).convert("RGB").quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    if (size := path.stat().st_size) > MAX_BYTES:
        raise PictureError(f"{path.name} has {size:,} bytes, more than the limit of {MAX_BYTES:,}: reduce its height")
    print(f"{path.relative_to(FOLDER.parents[1])}: {size:,} bytes", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Take all pictures; return 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m infra.pictures", description="Screenshots of a run for the documentation.")
    parser.add_argument("home", nargs="?", type=Path, default=Path(".chess_grpo"), help="home of a finished run")
    parser.add_argument("--run", default="", help="Metaflow's id of the run; the latest if there is none")
    given = parser.parse_args(words)
    store = f"sqlite:///{(given.home / 'mlflow.db').resolve()}"
    try:
        if not (given.home / "mlflow.db").is_file():
            raise PictureError(f"{given.home} is not the home of a run: it has no mlflow.db; `make run CONFIG=smoke` creates one")
        from mlflow.tracking import MlflowClient

        with TemporaryDirectory() as made, mlflow_ui(store, Path(made) / "ui.log") as address, browser() as page:
            home, client = given.home.resolve(), MlflowClient(store, registry_uri=store)
            draw_tracking(page, address, client, home=home, metaflow_run=given.run)
            draw_games(page, home)
            draw_cards(page, home.parent)
    except PlainError as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
