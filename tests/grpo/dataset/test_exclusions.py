from pathlib import Path

import chess
import pytest

from grpo.board.encoding import position_key
from grpo.dataset.exclusions import excluded_positions
from grpo.dataset.games import SourceError

PUZZLES = "FEN,Moves\nr6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1\n"
ENDGAME = "8/pp2nkR1/5n1p/3p4/5p2/P2BP3/1PPKN3/8 b - - 0 31"
GAME = (
    '[Event "?"]\n[Site "?"]\n[Date "2024.01.01"]\n[Round "1"]\n[White "a"]\n[Black "b"]\n[Result "1/2-1/2"]\n\n1. e4 e5 2. Nf3 1/2-1/2\n\n'
)


def judged(tmp_path: Path, **files: str) -> frozenset[str]:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return excluded_positions([str(tmp_path)])


def positions_of(*moves: str) -> list[str]:
    board = chess.Board()
    return [position_key(board), *(position_key(board) for move in moves if board.push_san(move))]


def test_the_positions_of_a_list_their_mirrors_and_no_others_are_judged(tmp_path: Path, random_boards: list[chess.Board]) -> None:
    boards = [board for board in random_boards[::10] if board.halfmove_clock < 100 and not board.is_insufficient_material()]
    found = judged(tmp_path, list_epd="\n".join(board.fen() for board in boards[::2]))
    keys = {position_key(board) for board in boards[::2]}
    assert found == keys == {position_key(board.mirror()) for board in boards[::2]}


def test_every_position_of_a_game_is_judged_the_last_one_too(tmp_path: Path) -> None:
    found = judged(tmp_path, book_pgn=GAME)
    assert found == set(positions_of("e4", "e5", "Nf3"))


def test_all_unreadable_entries_of_all_files_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as refusal:
        judged(
            tmp_path,
            list_epd=f"{ENDGAME}\nk7/8/8/8/8/8/8/KK6 w - - 0 1\nrubbish\n",
            book_pgn=GAME.replace("Nf3", "Nf6") + GAME,
            puzzles_csv=PUZZLES + "rubbish\n",
        )
    message = str(refusal.value)
    assert message.startswith("boards.exclude: 4 entries cannot be read")
    for place in ("list.epd, byte 49: ", "list.epd, byte 78: ", "book.pgn, game 1: ", "puzzles.csv, byte 93: "):
        assert f"{place}illegal " in message


def test_text_around_the_games_of_a_book_is_passed_over_and_a_chapter_without_moves_counts_by_its_position(tmp_path: Path) -> None:
    problem = f'[Event "a problem"]\n[FEN "{ENDGAME}"]\n[SetUp "1"]\n\n{{ Black to move. }} *\n\n'
    study = f'[Event "text alone"]\n\n{{ Read this first. }} *\n\n{problem}'
    found = judged(tmp_path, book_pgn=f"Openings of my club\n\n{GAME}Printed in May\n\n1. d4 d5 *\n", study_pgn=study)
    assert found == {*positions_of("e4", "e5", "Nf3"), *positions_of("d4", "d5"), position_key(chess.Board(ENDGAME))}
