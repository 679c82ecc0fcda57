"""The policy that comes with the project: today's code plays it as the code that made it."""

import chess

from grpo.base.files import read_json, verified_manifest
from infra.included import MOVES, best_moves
from steps.track.find import INCLUDED_FOLDER

_MAX_BYTES = 4_000_000


def test_the_included_policy_plays_the_moves_that_its_maker_wrote() -> None:
    wanted = read_json(MOVES)
    assert len(wanted) == 50
    assert best_moves(INCLUDED_FOLDER, [chess.Board(fen) for fen in wanted]) == wanted, "make it again: infra/included.py says how"


def test_the_included_policy_is_small_and_says_its_strength() -> None:
    facts = verified_manifest(INCLUDED_FOLDER)
    assert sum(path.stat().st_size for path in INCLUDED_FOLDER.iterdir()) <= _MAX_BYTES
    assert "above a random mover" in facts["strength"]
    card = (INCLUDED_FOLDER / "README.md").read_text()
    assert "| seed | 71 |" in card, "a reporting seed"
    assert "beats its own start" in card
