"""The phase rule by examples on both sides of each of its bounds."""

import chess
import pytest

from grpo.board.phases import Phase, phase_of


@pytest.mark.parametrize(
    ("fen", "phase", "why"),
    [
        (chess.STARTING_FEN, Phase.OPENING, "14 pieces, both back ranks full"),
        ("r1bqk1nr/pppp1ppp/2n5/2b1p3/2B1P3/2N2N2/PPPP1PPP/R1BQK2R b KQkq - 5 4", Phase.OPENING, "an Italian game"),
        ("8/5k2/8/8/3R4/8/5K2/8 w - - 0 1", Phase.ENDGAME, "one rook"),
        ("4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1", Phase.ENDGAME, "pawns do not count"),
        ("qrbnk3/8/8/8/8/8/8/3NKBR1 w - - 0 1", Phase.MIDDLEGAME, "7 pieces"),
        ("1rbnk3/8/8/8/8/8/8/3NKBR1 w - - 0 1", Phase.ENDGAME, "6 pieces"),
        ("rnbqkb2/8/8/8/8/8/8/2BQKBNR w - - 0 1", Phase.MIDDLEGAME, "10 pieces are too few for an opening"),
        ("rnbqkbn1/8/8/8/8/8/8/2BQKBNR w - - 0 1", Phase.OPENING, "11 pieces, both back ranks with at least 4"),
        ("rnbqkbnr/8/8/8/8/8/NBQ5/3RKBN1 w - - 0 1", Phase.OPENING, "White has 4 at home, his king among them"),
        ("rnbqkbnr/8/8/8/8/8/NBQN4/3RKB2 w - - 0 1", Phase.MIDDLEGAME, "White has 3 at home"),
        ("3rkb2/nbqn4/8/8/8/8/8/RNBQKBNR w - - 0 1", Phase.MIDDLEGAME, "Black has 3 at home"),
        ("3rkb2/pppppppp/nbqn4/8/8/8/8/RNBQKBNR w - - 0 1", Phase.MIDDLEGAME, "pawns are no pieces"),
        ("rnbqkbnr/8/8/8/8/NBQN4/8/3RKBPP w - - 0 1", Phase.MIDDLEGAME, "not even where pawns cannot be"),
        ("QRBNkNBR/8/8/8/8/8/8/qrbnKnbr w - - 0 1", Phase.MIDDLEGAME, "pieces on the opponent's back rank are not at home"),
    ],
)
def test_the_rule_by_example(fen: str, phase: Phase, why: str) -> None:
    assert phase_of(chess.Board(fen)) is phase, why
