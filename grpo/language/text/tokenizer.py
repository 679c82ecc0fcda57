"""Chess tokenizer of the built-in small model: one token for each piece with its square, one for a move, few for a number.

Text without a token of its own is encoded as bytes. Decoding restores every valid Unicode text.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import chess
from transformers import PreTrainedTokenizer

from grpo.base.files import write_json
from grpo.board.actions import ACTION_UCI

CHESS_TOKENS: Final = "chess_tokens.json"  # Vocabulary, saved beside the model's weights.
END: Final = "<|end|>"
PAD: Final = "<|pad|>"
_PIECE_LETTERS: Final = "PNBRQKpnbrqk"
_SQUARES: Final = [chess.square_name(chess.square(file, rank)) for rank in range(7, -1, -1) for file in range(8)]  # a8 to h1.
_NUM_HALF_MOVES: Final = 151  # Values 0 to 150 of the half-move clock; at 150 the game is over.
_NUM_MOVES: Final = 400  # Move numbers below this have a token.
_LARGE_PAWNS: Final = (990, 999)  # Whole pawns above 99 with a token: 990 is the limit without a mate, 999.xx is a mate.
_SQUARE: Final = "[a-h][1-8]"
_PART: Final = re.compile(
    "|".join(
        (
            rf"(?P<placement>(?:[{_PIECE_LETTERS}1-8]+/){{7}}[{_PIECE_LETTERS}1-8]+(?= [wb] ))",  # Squares of a FEN.
            r"[PA]: ",  # Beginning of a prompt.
            r"    [MEB]:",  # Label of moves, evaluations or best move.
            rf"(?:(?<![^+])| ){_SQUARE}{_SQUARE}[nbrq]?(?![^ +])",  # A move; after it comes a blank, `+` or the end of the text.
            r" [wb](?= )",  # Side to move.
            r" (?:KQ?k?q?|Qk?q?|kq?|q|-)(?: -)?(?= )",  # Castling rights, with "-" for no en passant.
            r" [a-h][36](?= )",  # En-passant square.
            r" [0-9]{1,3} (?=[0-9]{1,3}(?:[+ ]|\Z))",  # Half-move clock.
            r"(?<=[0-9] )[0-9]{1,3}",  # Move number.
            r"\+-?[01]\.[0-9]{1,3}(?=\+)",  # Reward: +0.001
            r"\+[01]\+[01](?!\.)",  # Flags of an environment answer, terminated and truncated: +0+1
            r" -?[0-9]{1,3}(?=\.)",  # Whole pawns of an evaluation.
            r"\.[0-9]{2}",  # Hundredths of a pawn.
            r".",  # Any other character.
        )
    ),
    re.DOTALL,
)


class ChessTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocabulary": CHESS_TOKENS}  # noqa: RUF012
    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        # Before `super().__init__`, which reads the vocabulary.
        self._ids = {token: index for index, token in enumerate(_vocabulary())}
        self._tokens = list(self._ids)
        super().__init__(  # type: ignore[no-untyped-call]
            **{**settings, "eos_token": END, "pad_token": PAD, "padding_side": "left", "clean_up_tokenization_spaces": False}
        )

    @property
    def vocab_size(self) -> int:
        return len(self._ids)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        path = Path(save_directory) / f"{filename_prefix or ''}{CHESS_TOKENS}"
        write_json(path, self._tokens)
        return (str(path),)

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(_texts(tokens))

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        tokens: list[str] = []
        for match in _PART.finditer(text):
            part = match[0]
            squares = _placement_tokens(part) if match["placement"] else None
            if squares is not None:
                tokens += squares
            elif part in self._ids:
                tokens.append(part)
            else:
                tokens += (f"<{byte:02x}>" for byte in part.encode("utf-8", "surrogatepass"))
        return tokens

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids[token]

    def _convert_id_to_token(self, index: int) -> str:
        return self._tokens[index]


def _placement_tokens(placement: str) -> list[str] | None:
    """Return one token per piece, or None if the text is no piece placement in its shortest form (`8`, not `44`)."""
    pieces = re.sub("[1-8]", lambda digit: " " * int(digit[0]), placement).replace("/", "")
    tokens = [f"{piece}@{square}" for piece, square in zip(pieces, _SQUARES, strict=False) if piece != " "]
    return tokens if len(pieces) == 64 and "".join(_texts(tokens)) == placement else None


def _texts(tokens: Sequence[str]) -> Iterator[str]:
    for kind, group in itertools.groupby(tokens, key=_token_kind):
        if kind == "bytes":
            yield bytes(int(token[1:3], 16) for token in group).decode("utf-8", "replace")
        elif kind == "piece":
            yield _placement(list(group))
        else:
            yield from group


def _placement(tokens: Sequence[str]) -> str:
    """Return a FEN's piece placement, or the tokens unchanged if a square repeats or is not in a FEN's order."""
    piece_of = {token[2:]: token[0] for token in tokens}
    if list(piece_of) != [square for square in _SQUARES if square in piece_of] or len(piece_of) < len(tokens):
        return "".join(tokens)
    ranks = ("".join(piece_of.get(square, " ") for square in _SQUARES[start : start + 8]) for start in range(0, 64, 8))
    return "/".join(re.sub(" +", lambda empty: str(len(empty[0])), rank) for rank in ranks)


def _token_kind(token: str) -> str:
    if len(token) == 4 and token[1] == "@":
        return "piece"
    return "bytes" if re.fullmatch("<[0-9a-f]{2}>", token) else "text"


def _vocabulary() -> Iterator[str]:
    """Saved models depend on the order."""
    yield from (END, PAD, *(f"<{byte:02x}>" for byte in range(256)))
    yield from (f"{piece}@{square}" for square in _SQUARES for piece in _PIECE_LETTERS)
    yield from ("P: ", "A: ", "    M:", "    E:", "    B:", " w", " b", "+", " ")
    castling = ["-", *("".join(rights) for size in range(1, 5) for rights in itertools.combinations("KQkq", size))]
    # Castling rights and the "-" of no en-passant square are one token (" KQkq -").
    yield from (f" {rights}{no_en_passant}" for rights in castling for no_en_passant in ("", " -"))
    yield from (f" {square}" for square in _SQUARES if square[1] in "36")
    moves = sorted({move for moves in ACTION_UCI.values() for move in moves})
    yield from (f"{gap}{move}" for gap in (" ", "") for move in moves)
    # Clocks, evaluations and flags share no tokens, so a token shows its kind.
    yield from (f" {number} " for number in range(_NUM_HALF_MOVES))
    yield from (str(number) for number in range(_NUM_MOVES))
    yield from (f" {sign}{number}" for sign in ("", "-") for number in (*range(100), *_LARGE_PAWNS))
    yield from (f".{number:02d}" for number in range(100))
    yield from ("+0.001", "+0.5", "+1.0", "+-1.0", "+0+0", "+0+1", "+1+0", "+1+1")
