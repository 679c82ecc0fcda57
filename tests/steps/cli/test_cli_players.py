"""Players by name: what each text means, what is refused and with which words, and that a name plays as it says."""

from dataclasses import replace
from pathlib import Path

import pytest
from doubles import CPU, some_boards

from grpo.base.files import sha256_file
from grpo.engine.pool import EnginePool, Query
from grpo.match.players import BestMovePlayer
from grpo.policy.policy import NetworkPolicy
from steps.cli.players import Contestant, ContestantError, entered, parse_contestant
from steps.run.machine import Machine

BOARDS = some_boards(40)
GAMES = range(len(BOARDS))


@pytest.fixture
def machine(home: Path) -> Machine:
    return Machine.here()


def moves(texts: list[str], machine: Machine, *, seed: int = 0) -> list[list[str]]:
    """Return what each named player answers on the boards."""
    contestants = [parse_contestant(text) for text in texts]
    with entered(contestants, machine, seed=seed) as entrants:
        return [[move.uci() for move in entrant.player.choose(BOARDS, GAMES)] for entrant in entrants]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/a/me@home/policy@2", Contestant(text="/a/me@home/policy@2", model="/a/me@home/policy", temperature=2.0)),
        ("random", Contestant(text="random")),
        (
            "stockfish:nodes=1,random=.5",
            Contestant(text="stockfish:nodes=1,random=.5", limit="nodes 1", random_share=0.5),
        ),
        ("uci:/a:b/e:depth=2", Contestant(text="uci:/a:b/e:depth=2", engine="/a:b/e", limit="depth 2")),
    ],
)  # fmt: skip
def test_a_text_means_a_player(text: str, meant: Contestant) -> None:
    assert parse_contestant(text) == meant


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


def test_a_policy_plays_its_best_moves_and_says_which_policy_it_is(policy: Path, machine: Machine) -> None:
    with entered([parse_contestant(str(policy))], machine, seed=0) as (entrant,):
        expected = BestMovePlayer(NetworkPolicy.load(policy, CPU), "policy").choose(BOARDS, GAMES)
        assert entrant.player.choose(BOARDS, GAMES) == expected
        assert entrant.player.name == str(policy)
        assert sha256_file(policy / "policy.safetensors") in entrant.about


def test_the_seed_repeats_what_is_drawn_and_two_of_a_name_draw_apart(policy: Path, machine: Machine) -> None:
    for text in (f"{policy}@1", "random"):
        one, two = moves([text, text], machine, seed=5)
        assert [one, two] == moves([text, text], machine, seed=5)
        assert one != two
        assert one != moves([text], machine, seed=6)[0]


def test_stockfish_plays_what_it_answers_to_the_limit(stockfish: str, machine: Machine) -> None:
    with EnginePool(stockfish, num_processes=1, options={"Hash": 1}) as pool:
        asked = [pool.search([Query(fen=board.fen(), limit=limit) for board in BOARDS]) for limit in ("nodes 50", "depth 3")]
    expected = [[answer.best_move for answer in answers] for answers in asked]
    assert expected[0] != expected[1]
    assert moves(["stockfish:nodes=50", f"uci:{stockfish}:depth=3"], replace(machine, stockfish=stockfish)) == expected
