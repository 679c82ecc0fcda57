"""Players by name: what each text means, what is refused, and that a name plays as it says."""

from pathlib import Path

import pytest
from doubles import some_boards

from steps.cli.players import ContestantError, entered, parse_contestant
from steps.run.machine import Machine
from steps.track.find import NotFoundError

BOARDS = some_boards(40)


def moves(*texts: str, machine: Machine, seed: int = 0) -> list[list[str]]:
    contestants = [parse_contestant(text) for text in texts]
    with entered(contestants, machine, seed=seed) as entrants:
        return [[move.uci() for move in entrant.player.choose(BOARDS, range(len(BOARDS)))] for entrant in entrants]


@pytest.mark.parametrize(
    "text",
    [
        *("", "champion@0", "random@1", "stockfish", "stokfish:nodes=5", "uci:nodes=5", "stockfish:nodes=0"),
        *("stockfish:nodes=1,depth=1", "stockfish:nodes=1,random=1", "stockfish:nodes=1000000001"),
    ],
)
def test_what_names_no_player_is_refused_with_all_that_is_allowed(text: str) -> None:
    with pytest.raises(ContestantError, match=r"is not a player; allowed are champion, .*stockfish:nodes=50") as raised:
        parse_contestant(text)
    assert repr(text) in str(raised.value)


def test_the_seed_repeats_what_is_drawn_and_two_of_a_name_draw_apart(policy: Path) -> None:
    for text in (f"{policy}@1", "random"):
        one, two = moves(text, text, machine=Machine.here(), seed=5)
        assert [one, two] == moves(text, text, machine=Machine.here(), seed=5)
        assert one != two
        assert one != moves(text, machine=Machine.here(), seed=6)[0]


def test_a_mistyped_player_is_told_as_one_and_a_mistyped_policy_as_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path))
    for text, error, words in (
        ("stokfish", ContestantError, "'stokfish' is not a player; .*did you mean stockfish"),
        ("chmpion", NotFoundError, "did you mean champion"),
    ):
        with pytest.raises(error, match=words), entered([parse_contestant(text)], Machine.here(), seed=0):
            pass
