"""A language model in games: what it names is played, what fails is counted and asked again by rule, and then the game is lost."""

from collections.abc import Callable

import chess
import pytest
import torch
from doubles import some_boards
from speakers import Answer, ScriptedSpeaker, naming

from grpo.base.seeding import numpy_stream
from grpo.language.generate.player import (
    AnswerGenerator,
    LanguageMoveFinder,
    LanguagePlayer,
    choices_in_game,
    moves_with_retries,
    named_move,
)
from grpo.language.model.policy import load_model
from grpo.match.matches import End, play_match
from grpo.match.players import RandomPlayer
from grpo.match.replies import ReplyCounts
from grpo.settings.language import LanguageConfig
from grpo.uci.options import UciOptions
from grpo.uci.server import RESIGNATION, UciEngine

OPENINGS = [board.fen() for board in some_boards(4, max_plies=30)]


def first_legal(fen: str) -> str:
    return min(move.uci() for move in chess.Board(fen).legal_moves)


def player(speaker: ScriptedSpeaker, *, temperature: float | None = None, seed: int = 0, name: str = "speaker") -> LanguagePlayer:
    return LanguagePlayer(speaker, name, temperature=temperature, rng=numpy_stream(seed, name))


@pytest.mark.parametrize(
    ("fen", "answer", "move", "is_unreadable"),
    [
        (chess.STARTING_FEN, naming("e2e4"), "e2e4", False),
        (chess.STARTING_FEN, "B: e2e4", "e2e4", False),
        (chess.STARTING_FEN, naming("e2e5"), None, False),
        (chess.STARTING_FEN, "", None, True),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1", "B: e1g1", "e1g1", False),
        ("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1", "B: e1h1", None, False),  # As Chess960 writes it, the tables do not.
        ("8/P6k/8/8/8/8/p6K/8 w - - 0 50", "B: a7a8n", "a7a8n", False),
    ],
)
def test_the_best_move_counts_if_it_is_legal_as_uci_writes_it(fen: str, answer: str, move: str | None, is_unreadable: bool) -> None:
    named, read = named_move(chess.Board(fen), answer, LanguageConfig())
    assert (None if named is None else named.uci(), read.best is None) == (move, is_unreadable)


def test_what_fails_is_asked_again_drawn_at_1_all_failed_boards_together() -> None:
    # The best answer fails on every other board, and the first drawn one on half of those.
    boards = some_boards(8)
    places = {board.fen(): place for place, board in enumerate(boards)}
    tries: dict[str, int] = {}

    def answer(fen: str, _: float | None) -> str:
        tries[fen] = tries.get(fen, 0) + 1
        num_failing = (0, 1, 0, 2)[places[fen] % 4]
        return naming(first_legal(fen)) if tries[fen] > num_failing else "" if tries[fen] == 1 else naming("a1a1")

    speaker = ScriptedSpeaker(answer)
    replies = moves_with_retries(speaker, boards, temperature=None, streams=[numpy_stream(0, place) for place in range(8)])
    assert speaker.asked == [(None, 8), (1.0, 4), (1.0, 2)]
    assert [None if reply.move is None else reply.move.uci() for reply in replies] == [first_legal(board.fen()) for board in boards]
    assert [reply.counts.num_answers for reply in replies] == [1, 2, 1, 3] * 2
    assert [(reply.counts.num_unreadable, reply.counts.num_illegal) for reply in replies] == [(0, 0), (1, 0), (0, 0), (1, 1)] * 2
    assert all(reply.counts.num_forfeits == 0 for reply in replies)


@pytest.mark.parametrize("max_questions", [1, 2, 5])
def test_after_so_many_answers_without_a_legal_move_there_is_none(max_questions: int) -> None:
    speaker = ScriptedSpeaker(lambda fen, _: naming("e2e5"), max_questions=max_questions)
    (reply,) = moves_with_retries(speaker, [chess.Board()], temperature=None, streams=[numpy_stream(0, "game")])
    assert reply.move is None
    assert len(speaker.asked) == max_questions
    assert reply.counts == ReplyCounts(num_moves=1, num_answers=max_questions, num_illegal=max_questions)
    assert (reply.counts.num_retries, reply.counts.num_forfeits) == (max_questions - 1, 1)


def a_drawn_move(fen: str, number: float | None) -> str:
    """Return nothing as the best answer, and else a legal move, or sometimes an illegal one, by the number drawn."""
    if number is None:
        return "?"
    legal = sorted(move.uci() for move in chess.Board(fen).legal_moves)
    return naming([*legal, "a1a1"][int(number * (len(legal) + 1))])


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_what_a_game_draws_does_not_depend_on_the_games_beside_it(temperature: float | None) -> None:
    def games(openings: list[str], numbers: list[int]) -> list[tuple[str, ...]]:
        speaker = ScriptedSpeaker(a_drawn_move)
        pair = [player(speaker, temperature=temperature, name=name) for name in ("one", "other")]
        return [game.moves for game in play_match(pair[0], pair[1], dict(zip(numbers, openings, strict=True)), max_plies=12).games]

    together = games(OPENINGS, [0, 1, 2, 3])
    assert games(OPENINGS[2:3], [2]) == together[4:6]
    assert games(OPENINGS[2:3], [1]) != together[4:6], "it is another game of the match"
    assert len(set(together)) == len(together)


def falls_silent(*, as_white: bool) -> Callable[[str, float | None], str]:
    """Return what names moves until the sixth of a color, and then says nothing."""
    return lambda fen, _: "" if (board := chess.Board(fen)).turn == as_white and board.fullmove_number >= 6 else naming(first_legal(fen))


@pytest.mark.parametrize("as_white", [True, False])
def test_who_names_no_legal_move_loses_the_game_there_with_either_color(as_white: bool) -> None:
    told: list[int] = []
    silent, other = ScriptedSpeaker(falls_silent(as_white=as_white)), RandomPlayer(numpy_stream(1, "random"))
    result = play_match(player(silent), other, [chess.STARTING_FEN], max_plies=16, on_games_done=told.append)
    lost, played_on = result.games if as_white else result.games[::-1]
    assert (lost.end, lost.score, len(lost.moves)) == (End.FORFEIT, 0.0, 10 if as_white else 11)
    assert (played_on.end, played_on.score) == (End.PLY_CAP, 0.5)
    swapped = play_match(other, player(silent), [chess.STARTING_FEN], max_plies=16)
    assert sorted(game.score for game in swapped.games) == [0.5, 1.0], "seen from the other player it is won"
    assert swapped.report().answers == {"second": result.report().answers["first"]}
    assert told == [1, 2], "a game that was given up is over"
    assert result.report().ends[End.FORFEIT] == 1


def test_a_move_that_repeats_a_position_of_the_game_is_no_choice_unless_all_repeat() -> None:
    board = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1"):
        board.push_uci(move)
    legal = {move.uci() for move in board.legal_moves}
    assert set(choices_in_game(board)) == legal - {"f6g8"}
    assert choices_in_game(board, frozenset({"f6g8"})) == ("f6g8",)
    assert set(choices_in_game(board, frozenset({"f6g8", "a7a6"}))) == {"a7a6"}
    assert set(choices_in_game(chess.Board(board.fen()))) == legal, "no history, no repetition"


def test_best_answers_repeat_no_position_of_the_game() -> None:
    config = LanguageConfig(small_width=16, small_num_layers=1, lists_moves=False, max_answer_tokens=16)
    generator = AnswerGenerator(load_model(config, seed=0, device=torch.device("cpu")), config)
    players = [LanguagePlayer(generator, name, temperature=None, rng=numpy_stream(0, name)) for name in ("one", "two")]
    games = play_match(*players, OPENINGS[:2], max_plies=120).games
    assert End.REPETITION not in {game.end for game in games}
    assert max(len(game.moves) for game in games) > 60


def test_searchmoves_limit_the_mask() -> None:
    config = LanguageConfig(small_width=16, small_num_layers=1, lists_moves=False, max_answer_tokens=16, max_questions=1)
    generator = AnswerGenerator(load_model(config, seed=0, device=torch.device("cpu")), config)
    for move in ("a2a3", "h2h4", "b1c3"):
        [reply] = moves_with_retries(generator, [chess.Board()], temperature=None, streams=[numpy_stream(0)], allowed=frozenset({move}))
        assert reply.move == chess.Move.from_uci(move)


def said(answer: Answer, *commands: str, max_questions: int = 3) -> list[str]:
    lines: list[str] = []
    speaker = ScriptedSpeaker(answer, max_questions=max_questions)
    options = UciOptions(temperature=0.0, has_lines=False)
    engine = UciEngine(name="x", options=options, load=lambda: LanguageMoveFinder(speaker), seed=7, write=lines.append)
    assert all(engine.handle(command) for command in commands)
    return lines


def best_moves(lines: list[str]) -> list[str]:
    return [line.removeprefix("bestmove ") for line in lines if line.startswith("bestmove ")]


@pytest.mark.parametrize("max_questions", [1, 4])
def test_when_it_may_be_asked_no_more_it_says_so_and_tells_the_null_move(max_questions: int) -> None:
    lines = said(
        lambda fen, _: naming("e2e5"), "position startpos", "go", "position startpos moves e2e4", "go", max_questions=max_questions
    )
    assert RESIGNATION == "0000"
    assert best_moves(lines) == ["0000", "0000"], "one for each go"
    remark = f"info string language model: {max_questions} answers, 0 unreadable, {max_questions} illegal: no legal move, so"
    assert sum(line.startswith(remark) for line in lines) == 2
    assert not any(" pv " in line for line in lines)


def test_asked_twice_about_a_board_it_draws_the_same_and_in_another_game_another_move() -> None:
    warm = "setoption name Temperature value 1"
    lines = said(lambda fen, number: a_drawn_move(fen, number or 0.0), warm, "position startpos", "go", "go", *["ucinewgame", "go"] * 8)
    first, again, *others = best_moves(lines)
    assert first == again
    assert len({first, *others}) > 3
