"""The chess tokenizer: every text comes back, every board has its squares at the same places."""

import chess
from hypothesis import example, given
from hypothesis import strategies as st

from grpo.language.text.tasks import environment_prompt, move_prompt, write_environment_answer, write_move_answer
from grpo.language.text.tokenizer import END, PAD, chess_tokenizer

TOKENIZER = chess_tokenizer()
MOVES = ["e2e4", "e7e8q", "a7b8n", "h2h1r"]


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def text_of(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids))


def test_every_text_of_the_format_comes_back(random_boards: list[chess.Board]) -> None:
    for board in random_boards[::7]:
        fen = board.fen(en_passant="fen")
        for text in (
            move_prompt(fen),
            environment_prompt(fen, MOVES[0], MOVES),
            environment_prompt(fen, MOVES[0], []),
            write_move_answer(MOVES, [0.35, -1.2, -0.01, 999.97], MOVES[1]),
            write_environment_answer(fen, -1.0, terminated=False, truncated=True),
        ):
            assert text_of(ids_of(text)) == text


@given(st.text())
@example("44/8/8 w - 18/8/8/8/8/8/8/8 w ")
@example("8/8/8/8/8/8/8/8/8 w - - 0 1")
@example("p@a8.@b8<41>")
@example(f"a{END}b{PAD}")
@example("e2e4 e2e4e2 e2 +e2e4q+e2 4")
def test_any_other_text_comes_back_too(text: str) -> None:
    assert text_of(ids_of(text)) == text


def test_each_square_has_its_own_place_whatever_stands_before_it(random_boards: list[chess.Board]) -> None:
    for board in random_boards[::50]:
        tokens = TOKENIZER.convert_ids_to_tokens(ids_of(move_prompt(board.fen())))
        assert len(tokens) == 70 + (board.fen().split()[3] != "-")
        for place, token in enumerate(tokens[1:65]):
            man, square = token.split("@")
            found = board.piece_at(chess.parse_square(square))
            assert man == (found.symbol() if found else ".")
            assert chess.parse_square(square) == chess.square(place % 8, 7 - place // 8)
