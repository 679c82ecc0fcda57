"""The command `match`: what it prints and writes of games, and what it refuses before any game."""

import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import chess.pgn
import pytest
from doubles import CPU, TINY, some_boards

from grpo.base.seeding import numpy_stream
from grpo.learning.checkpoints import save_policy
from grpo.play.matches import Adjudication, End, MatchResult, PlayedGame
from grpo.play.players import RandomPlayer
from grpo.policy.distribution import new_policy
from steps.cli.match_text import match_text, scores
from steps.cli.players import Entrant, parse_contestant

OPENINGS = [board.fen() for board in some_boards(40)]
Run = Callable[..., tuple[int, str, str]]
KINDS = ("pgn", "html", "json")
SHALLOW = ("--set", "evaluation.adjudication_depth=2")


@pytest.fixture
def run(console: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    return console


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return the folder of a tiny policy."""
    folder = tmp_path / "policy"
    folder.mkdir()
    save_policy(folder, new_policy(TINY, seed=1, device=CPU), TINY)
    return folder


def made_up(pairs: list[tuple[float, float]], *, ends: End = End.CHECKMATE, adjudicated: list[float] | None = None) -> MatchResult:
    """Return a match with these scores of the first player, pair by pair."""
    games = [
        PlayedGame(
            opening=OPENINGS[index // 2],
            first_is_white=index % 2 == 0,
            moves=("e2e4",),
            end=End.REPETITION if score == 0.5 else ends,
            score=score,
            adjudicated=None if adjudicated is None or score != 0.5 else adjudicated[index],
        )
        for index, score in enumerate(score for pair in pairs for score in pair)
    ]
    rule = None if adjudicated is None else Adjudication(depth=10, centipawns=250, num_failed=0)
    return MatchResult(first="one", second="other", games=tuple(games), adjudication=rule)


def entrants(*texts: str) -> list[Entrant]:
    """Return players who were named so, and are networks where they are policies."""
    named = [parse_contestant(text) for text in texts]
    return [
        Entrant(contestant=one, player=RandomPlayer(numpy_stream(0, "never asked")), facts={}, is_deterministic=one.is_deterministic)
        for one in named
    ]


PAIRS = [(1.0, 1.0)] * 5 + [(1.0, 0.5)] * 9 + [(0.5, 0.5)] * 12 + [(0.0, 0.5)] * 4 + [(0.0, 0.0)] * 2


def test_the_adjudicated_score_stands_beside_the_score_as_played() -> None:
    result = made_up(PAIRS, adjudicated=[1.0] * 64)
    played, adjudicated = scores(result)
    assert played == scores(made_up(PAIRS))[0]
    assert adjudicated.pentanomial == (2, 0, 4, 0, 26)
    assert adjudicated.draw_rate == 0
    text = match_text(result, entrants("champion", "peak"))
    assert str(result.interval()) in text
    assert str(result.interval(adjudicated=True)) in text


def test_the_text_says_what_the_sample_is() -> None:
    result = made_up(PAIRS)
    alike = match_text(result, entrants("champion", "stockfish:nodes=5"))
    assert "32 distinct openings, 64 distinct games; both players are deterministic" in alike
    drawn = match_text(result, entrants("champion@1", "stockfish:nodes=5"))
    assert "deterministic" not in drawn
    assert "pairs of games are the sample" in drawn
    clock = match_text(result, entrants("champion", "stockfish:nodes=5,skill=3"))
    assert "stockfish:nodes=5,skill=3: random by the clock, so these games are not reproducible" in clock


def test_games_that_are_the_same_count_once_as_distinct() -> None:
    result = made_up([(1.0, 1.0)] * 2)
    twice = MatchResult(first="one", second="other", games=result.games[:2] * 2)
    assert "1 distinct openings, 2 distinct games" in match_text(twice, entrants("champion", "champion"))


def test_a_match_is_printed_and_written_and_repeats_with_its_seed(
    stockfish: str, run: Run, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The day may end between the two matches.
    monkeypatch.setattr("steps.cli.match.datetime", SimpleNamespace(now=lambda zone: datetime(2026, 11, 25, tzinfo=zone)))
    match = ("match", f"{policy}@0.5", "random", "--pairs", "3", "--max-plies", "10", "--seed", "7", *SHALLOW)
    code, out, err = run(*match, *(word for kind in KINDS for word in (f"--{kind}", tmp_path / f"one.{kind}")))
    assert code == 0
    assert "match: openings: 3, games: 6" in err
    assert f"written: {tmp_path / 'one.pgn'}, " in err
    for said in ("likelihood of superiority", "pairs LL", "ends", "3 distinct openings, 6 distinct games"):
        assert said in out
    facts = json.loads((tmp_path / "one.json").read_text())
    assert facts["num_pairs"] == facts["num_openings"] == 3
    assert facts["seed"] == 7
    assert facts["evaluation"]["max_plies"] == 10
    assert [player["kind"] for player in facts["players"]] == ["policy", "random"]
    assert facts["wins"] + facts["draws"] + facts["losses"] == sum(facts["ends"].values()) == 6
    assert sum(facts["scores"]["as played"]["pentanomial"]) == 3
    assert not facts["is_deterministic"]
    games = list(_games(tmp_path / "one.pgn"))
    assert len(games) == 6
    assert {game.headers["White"] for game in games} == {f"{policy}@0.5", "random"}
    assert len({game.headers["FEN"] for game in games}) == 3
    noted = next(node for node in games[0].mainline() if node.turn() == (games[0].headers["White"] == "random"))
    assert "probability" in noted.comment
    assert facts["players"][0]["weights_hash"] in games[0].headers["FirstPlayer"]
    run(*match, *(word for kind in KINDS for word in (f"--{kind}", tmp_path / f"again.{kind}")))
    for kind in KINDS:
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"again.{kind}").read_bytes()


def _games(path: Path) -> list[chess.pgn.Game]:
    text, games = io.StringIO(path.read_text()), []
    while (game := chess.pgn.read_game(text)) is not None:
        assert not game.errors
        games.append(game)
    return games


def test_adjudication_comes_by_itself_where_most_games_end_undecided(stockfish: str, run: Run) -> None:
    base = ("match", "random", "random", "--pairs", "2", *SHALLOW)
    assert "adjudicated" in run(*base, "--max-plies", "4")[1]
    assert "adjudicated" not in run(*base, "--max-plies", "4", "--no-adjudicate")[1]
    long = ("match", "random", "stockfish:nodes=1", "--pairs", "1", "--max-plies", "400", *SHALLOW)
    assert "adjudicated" not in run(*long)[1]
    assert "adjudicated" in run(*long, "--adjudicate")[1]


def refused(run: Run, *arguments: str | Path) -> str:
    code, out, err = run("match", *arguments)
    assert code == 1
    assert out == ""
    assert "match: " not in err  # None was begun.
    return err


def test_what_cannot_be_is_refused_before_any_game(run: Run, tmp_path: Path) -> None:
    there = tmp_path / "there.pgn"
    there.write_text("mine")
    two = ("random", "random")
    assert "is not a player" in refused(run, "random", "stokfish:nodes=1")
    assert "give at least 1" in refused(run, *two, "--pairs", "0")
    assert "already exists" in refused(run, *two, "--pgn", there)
    assert "already exists" in refused(run, *two, "--json", there)
    assert "there is no folder" in refused(run, *two, "--pgn", tmp_path / "none" / "a.pgn")
    assert "name different files" in refused(run, *two, "--pgn", tmp_path / "a", "--json", tmp_path / "a")
    assert "unknown key evaluation.max_plys" in refused(run, *two, "--set", "evaluation.max_plys=3")
    assert "max_plies" in refused(run, *two, "--max-plies", "0")
    assert there.read_text() == "mine"


def test_games_begin_in_a_phase_when_one_is_asked_for(stockfish: str, run: Run, tmp_path: Path) -> None:
    from grpo.board.phases import Phase, phase_of

    book = tmp_path / "book.epd"
    book.write_text("".join(f"{board.epd()}\n" for board in some_boards(100, max_plies=200)))
    out = tmp_path / "match.pgn"
    words = ("match", "random", "random", "--openings", book, "--phase", "endgame", "--pairs", "3", "--max-plies", "4", "--pgn", out)
    code, _, complaints = run(*words, "--set", "evaluation.max_opening_centipawns=2000")
    assert code == 0, complaints
    boards = [game.board() for game in _games(out)]
    assert len(boards) == 6
    assert {phase_of(board) for board in boards} == {Phase.ENDGAME}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--phase", "endgame"), "--phase and --boards go together"),
        (("--boards", "somewhere"), "--phase and --boards go together"),
        (("--boards", "somewhere", "--phase", "endgame", "--openings", "book.epd"), "give only one of the two"),
        (("--boards", "somewhere", "--phase", "endgame"), "somewhere is not a dataset"),
    ],
)
def test_a_phase_needs_somewhere_to_come_from(stockfish: str, run: Run, words: tuple[str, ...], complaint: str) -> None:
    code, said, complaints = run("match", "random", "random", *words)
    assert (code, said) == (1, "")
    assert complaint in complaints
