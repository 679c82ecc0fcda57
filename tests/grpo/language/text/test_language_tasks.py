"""The two tasks as texts and tokens: what is written is read back, and no text that is none of them passes for one."""

import chess
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_language import ALPHABET

from grpo.board.actions import ACTION_UCI
from grpo.language.text.fen_similarity import FIELD_WEIGHT, fen_similarity
from grpo.language.text.tasks import (
    NUM_MOVES,
    environment_prompt,
    move_prompt,
    read_environment_answer,
    read_move_answer,
    read_move_prompt,
    write_environment_answer,
    write_move_answer,
)
from grpo.language.text.tokenizer import END, PAD, ChessTokenizer

START = chess.STARTING_FEN
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
GOOD = " e2e4 d2d4 g1f3 c2c4 b1c3    E: 0.35 0.30 0.25 0.20 -0.10    B: e2e4"
GOOD_ENVIRONMENT = f"{AFTER_E4}+0.001+0+0"

MOVES = st.sampled_from(ACTION_UCI[chess.WHITE])
PAWNS = st.integers(-100_000, 100_000).map(lambda centipawns: centipawns / 100)
BLANKS = st.sampled_from(["", " ", "\n", "\t ", "      "])


@st.composite
def positions(draw: st.DrawFn) -> str:
    board = chess.Board()
    for choice in draw(st.lists(st.integers(0, 200), max_size=25)):
        legal = list(board.legal_moves)
        if not legal:
            break
        board.push(legal[choice % len(legal)])
    return board.fen()


def test_the_formats_are_those_of_the_documentation() -> None:
    assert move_prompt(START) == f"P: {START}    M:"
    assert write_move_answer(["e2e4", "d2d4"], [0.354, -12], "e2e4") == " e2e4 d2d4    E: 0.35 -12.00    B: e2e4"
    # As in RookWorld's README: the history has the move itself.
    assert environment_prompt(START, "e2e4", ["e2e4"]) == f"A: {START}+e2e4+e2e4+"
    assert environment_prompt(START, "e2e4", ["a2a3", "a7a6", "e2e4"]) == f"A: {START}+e2e4+a2a3 a7a6 e2e4+"
    assert write_environment_answer(AFTER_E4, 0.001, terminated=False, truncated=True) == f"{AFTER_E4}+0.001+0+1"


@settings(max_examples=60)
@given(st.lists(st.tuples(MOVES, PAWNS), min_size=1, max_size=NUM_MOVES), MOVES, BLANKS, st.data())
def test_a_written_choice_is_read_back_whatever_white_space_is_around_it(
    listed: list[tuple[str, float]], best: str, blank: str, data: st.DataObject
) -> None:
    moves, evaluations = zip(*listed, strict=True)
    text = write_move_answer(moves, evaluations, best)
    padded = text.replace(" ", data.draw(st.sampled_from([" ", "\n", "   "]))) + blank
    for form in (text, padded, text.replace(" E: ", "E:").replace("  B: ", "B:")):
        answer = read_move_answer(form, num_legal=len(moves))
        assert (answer.moves, answer.evaluations, answer.best) == (moves, evaluations, best)
        assert answer.is_readable
        assert answer.num_fields == 2 * len(moves) + 1
    assert set(text) <= set(ALPHABET)


@settings(max_examples=60)
@given(positions(), st.sampled_from([0.001, 1.0, 0.5, -1.0]), st.booleans(), BLANKS)
def test_a_written_outcome_is_read_back_whatever_white_space_is_around_it(fen: str, reward: float, flag: bool, blank: str) -> None:
    text = write_environment_answer(fen, reward, terminated=flag, truncated=not flag)
    for form in (text, blank + text + blank, text.replace("+", " + "), text.replace(" ", "  "), f"{text}+"):
        answer = read_environment_answer(form)
        assert (answer.fen, answer.reward, answer.terminated, answer.truncated) == (fen, reward, flag, not flag)
        assert answer.is_readable
        assert answer.num_fields == 9
    assert set(text) <= set(ALPHABET)


@pytest.mark.parametrize("number", ["nan", "-inf", "1e999", "\u0663.\u0665", "1_000", "12345", "1.", "1,5"])
def test_what_is_no_plain_number_is_not_read(number: str) -> None:
    answer = read_move_answer(GOOD.replace("0.30", number))
    assert not answer.is_readable
    assert None in answer.evaluations
    assert not read_environment_answer(GOOD_ENVIRONMENT.replace("0.001", number)).is_readable


@pytest.mark.parametrize("move", ["e2e9", "E2E4", "e2-e4", "e7e8k", "Nf3", "0000", "e2", "e2e4e5", "\u04352\u04354"])
def test_what_is_no_uci_move_is_not_read(move: str) -> None:
    assert read_move_answer(GOOD.replace("d2d4", move)).moves == ("e2e4", None, "g1f3", "c2c4", "b1c3")
    assert read_move_answer(GOOD.replace("B: e2e4", f"B: {move}")).best is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, (3, 3, 11, 11)),
        ("", (0, 3, 0, 11)),
        (" e2e4 d2d4 g1f3 c2c4 b1c3    E: 0.35 0.30    B:", (2, 3, 7, 11)),
        # A label twice, out of order or of another text: reading ends there, and all words from there on are too many.
        (GOOD + " B: d2d4", (3, 4, 11, 12)),
        (GOOD + "    M: e2e4 e2e4    B: d2d4", (3, 5, 11, 14)),
        (f"{move_prompt(START)}{GOOD}", (0, 7, 0, 28)),
        # Words too many.
        (GOOD + " d2d4", (3, 3, 11, 12)),
        (" e2e4" * 50 + "    E: 0.10 0.10 0.10 0.10 0.10    B: e2e4", (3, 3, 11, 56)),
        # The other task.
        (GOOD_ENVIRONMENT, (0, 3, 0, 12)),
    ],
)
def test_sections_and_words_that_do_not_belong_are_counted(text: str, expected: tuple[int, int, int, int]) -> None:
    answer = read_move_answer(text)
    assert answer.is_readable == (text == GOOD)
    assert (answer.num_sections, answer.num_sections_expected, answer.num_fields, answer.num_fields_expected) == expected


def test_similarity_worked_by_hand() -> None:
    # e2e4 changes two squares and the side to move; the clocks stay 0 and 1.
    wanted = 2 + FIELD_WEIGHT

    def similarity(answer: str) -> float:
        return fen_similarity(answer, AFTER_E4, before=START)

    assert similarity(AFTER_E4.replace(" b ", " w ")) == pytest.approx(2 / wanted)
    # A copy that knows whose turn it is has little.
    assert similarity(START.replace(" w ", " b ")) == pytest.approx(FIELD_WEIGHT / wanted)
    # The pawn stays where it was, and is there twice.
    assert similarity(AFTER_E4.replace("PPPP1PPP", "PPPPPPPP")) == pytest.approx((1 + FIELD_WEIGHT) / wanted)
    # A third square changes too; a right is lost; a field is missing, or one too many.
    assert similarity(AFTER_E4.replace("/8/8/4P3", "/8/4P3/4P3")) == pytest.approx(wanted / (wanted + 1))
    assert similarity(AFTER_E4.replace("KQkq", "KQk")) == pytest.approx(wanted / (wanted + FIELD_WEIGHT))
    assert similarity(AFTER_E4.rpartition(" ")[0]) == pytest.approx(wanted / (wanted + FIELD_WEIGHT))
    assert similarity(AFTER_E4 + " 1") == pytest.approx(wanted / (wanted + FIELD_WEIGHT))
    # Where nothing should change, less for all that does.
    assert fen_similarity(AFTER_E4, START, before=START) == pytest.approx(1 / (1 + wanted))


# Tokens.


TOKENIZER = ChessTokenizer()
WRITTEN = ["e2e4", "e7e8q", "a7b8n", "h2h1r"]


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def text_of(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids))


def test_the_best_move_alone_is_read_as_the_whole_answer() -> None:
    for lists_moves in (True, False):
        assert read_move_prompt(move_prompt(START, lists_moves=lists_moves)) == (START, lists_moves)
    assert read_move_prompt(environment_prompt(START, "e2e4", ["e2e4"])) is None
    read = read_move_answer(" e2e4", lists_moves=False)
    assert (read.best, read.is_readable, read.num_sections, read.num_sections_expected) == ("e2e4", True, 1, 1)
    assert (read.num_fields, read.num_fields_expected) == (1, 1)
    longer = read_move_answer(" e2e4 d2d4", lists_moves=False)
    assert (longer.best, longer.is_readable, longer.num_fields_expected) == ("e2e4", False, 2)
    assert not read_move_answer(GOOD, lists_moves=False).is_readable
    assert not read_move_answer(" e2e4").is_readable


def test_every_text_of_the_format_comes_back(random_boards: list[chess.Board]) -> None:
    for board in random_boards[::50]:
        fen = board.fen(en_passant="fen")
        for text in (
            move_prompt(fen),
            environment_prompt(fen, WRITTEN[0], WRITTEN),
            environment_prompt(fen, WRITTEN[0], []),
            write_move_answer(WRITTEN, [0.35, -1.2, -0.01, 999.97], WRITTEN[1]),
            write_environment_answer(fen, -1.0, terminated=False, truncated=True),
        ):
            assert text_of(ids_of(text)) == text


@given(st.text())
@example("44/8/8 w - 18/8/8/8/8/8/8/8 w ")
@example("8/8/8/8/8/8/8/8/8 w - - 0 1")
@example("8/8/8/8/8/8/8/8 w - - 0 1")
@example("p@a8.@b8<41>")
@example(f"a{END}b{PAD}")
@example("e2e4 e2e4e2 e2 +e2e4q+e2 4")
def test_any_other_text_comes_back_too(text: str) -> None:
    assert text_of(ids_of(text)) == text


def test_each_man_has_its_own_token_whatever_stands_before_it(random_boards: list[chess.Board]) -> None:
    for board in random_boards[::50]:
        tokens = TOKENIZER.convert_ids_to_tokens(ids_of(move_prompt(board.fen())))
        men = len(board.piece_map())
        assert len(tokens) == 6 + men + (board.fen().split()[3] != "-")
        assert {token.split("@")[1]: token.split("@")[0] for token in tokens[1 : men + 1]} == {
            chess.square_name(square): piece.symbol() for square, piece in board.piece_map().items()
        }


def test_men_out_of_order_or_on_one_square_are_no_position() -> None:
    for tokens in (["K@e1", "k@e8"], ["k@e8", "K@e8"]):
        text = text_of(TOKENIZER.convert_tokens_to_ids([*tokens, " w"]))
        assert text == f"{''.join(tokens)} w"
