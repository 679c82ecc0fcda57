"""What is known of the pretrained policy before GRPO: matches, a place on the ladder, and what is said of both."""

from pathlib import Path
from typing import Any

import pytest
from doubles import CPU, TINY, some_boards
from made_boards import write_boards

from grpo.base.files import read_json
from grpo.engine.identity import EngineIdentity
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.learning.checkpoints import save_policy
from grpo.play.matches import Adjudication, End, MatchResult, PlayedGame
from grpo.play.players import BestMovePlayer
from grpo.policy.distribution import new_policy
from grpo.settings.tree import read_settings
from steps.bodies.baseline import play_baseline
from steps.bodies.calibrate import calibrate_ladder
from steps.bodies.measure import match_facts, place_players, read_ladder
from steps.step_io.names import REPORT
from steps.step_io.work import Work, read_history

SETTINGS = read_settings("test")


# Facts of a match.


def game(score: float, *, opening: str = "a", adjudicated: float | None = None) -> PlayedGame:
    """Return a game with a score."""
    end = End.REPETITION if score == 0.5 else End.CHECKMATE
    return PlayedGame(opening=f"{opening} w - - 0 1", first_is_white=True, moves=(), end=end, score=score, adjudicated=adjudicated)


def test_facts_of_a_match_worked_by_hand() -> None:
    games = (game(1), game(0.5), game(0), game(1), game(0.5, opening="b"), game(0.5, opening="b"), game(0), game(0.5))
    facts = match_facts(MatchResult(first="one", second="other", games=games))
    assert (facts["wins"], facts["draws"], facts["losses"]) == (2, 4, 2)
    assert (facts["score"], facts["num_pairs"], facts["num_openings"]) == (0.5, 4, 2)
    assert facts["ends"]["threefold repetition"] == facts["ends"]["checkmate"] == 4
    assert "adjudicated" not in facts


def test_an_adjudicated_match_has_both_scores_and_the_rule() -> None:
    games = (game(1), game(0.5, adjudicated=1.0), game(0.5, adjudicated=0.5), game(0.5, adjudicated=1.0))
    rule = Adjudication(depth=6, centipawns=300, num_failed=0)
    facts = match_facts(MatchResult(first="one", second="other", games=games, adjudication=rule))
    assert (facts["score"], facts["adjudicated"]["score"]) == (0.625, 0.875)
    assert (facts["adjudicated"]["depth"], facts["adjudicated"]["centipawns"], facts["adjudicated"]["num_failed"]) == (6, 300, 0)


# The whole step, small.


@pytest.fixture(scope="module")
def inputs(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Boards, a fresh policy and a ladder."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("boards", "pretrained", "calibrated")}
    write_boards(folders["boards"], some_boards(12))
    save_policy(folders["pretrained"], new_policy(TINY, seed=0, device=CPU), TINY)
    engine = EngineIdentity(name="Stockfish", sha256="0" * 64)
    calibrate_ladder(SETTINGS, engine=engine, engine_path=stockfish, num_processes=1, work=Work(folders["calibrated"], ()))
    return folders


def baseline(inputs: dict[str, Path], stockfish: str, folder: Path) -> Any:
    """Return the report of the step."""
    folder.mkdir()
    work = Work(folder, ())
    play_baseline(SETTINGS, **inputs, engine_path=stockfish, num_processes=1, device=CPU, work=work)
    work.write_history()
    return read_json(folder / REPORT)


def test_the_step_leaves_regret_both_matches_and_a_place_on_the_ladder(inputs: dict[str, Path], stockfish: str, tmp_path: Path) -> None:
    report = baseline(inputs, stockfish, tmp_path / "one")
    assert report.keys() == {"heldout", "matches", "ladder"}
    assert list(report["matches"]) == ["random", "stockfish-1-nodes"]
    for facts in report["matches"].values():
        assert facts["num_pairs"] == facts["num_openings"] == SETTINGS.evaluation.num_baseline_pairs
        assert facts["adjudicated"]["depth"] == SETTINGS.evaluation.adjudication_depth
    place = report["ladder"]
    rungs = {rung.name: rating for rung, rating in zip(*ladder_parts(inputs["calibrated"]), strict=True)}
    assert [part["rung_rating"] for part in place["games"]] == [rungs[part["rung"]] for part in place["games"]]
    assert [part["num_pairs"] for part in place["games"]] == [SETTINGS.evaluation.ladder.num_rung_pairs] * 2
    assert place["low_of_all"] <= place["low"] < place["rating"] < place["high"] <= place["high_of_all"]
    assert place["probes"]
    # A fresh policy plays like chance.
    assert report["matches"]["random"]["score"] > report["matches"]["stockfish-1-nodes"]["score"]
    assert place["games"][0]["rung"] == "random"
    metrics = {name: value for record in read_history(tmp_path / "one") for name, value in record.metrics.items()}
    assert metrics["baseline/rating"] == place["rating"]
    assert metrics["baseline/score_engine_high"] == report["matches"]["stockfish-1-nodes"]["high"]
    assert metrics["baseline/score_random"] == report["matches"]["random"]["score"]


def ladder_parts(folder: Path) -> tuple[Any, Any]:
    """Return rungs and ratings."""
    ladder = read_ladder(folder)
    return ladder.rungs, ladder.ratings.tolist()


def test_another_player_is_placed_on_openings_of_its_own_and_none_that_was_excluded(inputs: dict[str, Path], stockfish: str) -> None:
    ladder, policy = read_ladder(inputs["calibrated"]), new_policy(TINY, seed=0, device=CPU)
    used: set[str] = set()
    openings = []
    with EnginePool(stockfish, num_processes=1, options={"Hash": PLAYING_HASH_MIB}) as pool:
        for purpose in ("pretrained", "champion"):
            [placement] = place_players(
                [BestMovePlayer(policy, purpose)],
                ladder,
                config=SETTINGS.evaluation.model_copy(update={"max_plies": 20}),
                seed=0,
                purpose=purpose,
                pool=pool,
                exclude=used,
                on_games_done=lambda _: None,
            )
            parts = (*placement.probes, *placement.games)
            openings.append({game.opening for part in parts for game in part.result.games})
    assert not openings[0] & openings[1]
