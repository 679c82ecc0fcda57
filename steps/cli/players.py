"""Parses and opens the players of a match."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpo.base.errors import PlainError
from grpo.base.suggestions import nearest
from grpo.engine.identity import identify
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from steps.run.machine import Machine
from steps.track.find import POLICY_NAMES, FoundPolicy, NotFoundError, find_policy

if TYPE_CHECKING:
    from grpo.match.players import Player
    from grpo.viewer.annotations import MoveProbabilities

_WORDS: Final = ("random", "stockfish")  # Suggested for a mistyped player.
ALLOWED: Final = (
    f"{POLICY_NAMES}; a policy with @T samples moves at temperature T (champion@0.5); random;"
    " stockfish:nodes=50, stockfish:depth=3, stockfish:nodes=1,random=0.5; uci:/path/to/engine:nodes=100"
)
_MAX_LIMIT: Final[Mapping[str, int]] = {"nodes": 1_000_000_000, "depth": 100}
_ENGINE: Final = re.compile(
    r"(?:stockfish|uci:(?P<path>.+)):(?P<unit>nodes|depth)=(?P<limit>[0-9]{1,10})(?:,random=(?P<random>0?\.[0-9]+))?"
)
_AT_TEMPERATURE: Final = re.compile(r"(.+)@([0-9]+\.?[0-9]*|\.[0-9]+)")


class ContestantError(PlainError, ValueError):
    """A text is not a player."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """A parsed player. A random mover has neither `model` nor `limit`."""

    text: str  # As typed.
    model: str = ""  # A policy (`POLICY_NAMES`).
    temperature: float | None = None  # None plays the best move.
    engine: str | None = None  # Path; None is this machine's Stockfish.
    limit: str = ""  # An engine's search limit, as in UCI: "nodes 50".
    random_share: float = 0.0  # Probability that a random move replaces an engine's.


def parse_contestant(text: str) -> Contestant:
    """Raises ContestantError."""
    if text == "random":
        return Contestant(text=text)
    if text.partition(":")[0] in ("stockfish", "uci"):
        match = _ENGINE.fullmatch(text)
        limit, share = (0, 1.0) if match is None else (int(match["limit"]), float(match["random"] or 0))
        if match is None or not 1 <= limit <= _MAX_LIMIT[match["unit"]] or share >= 1:
            raise _unreadable(text)
        return Contestant(text=text, engine=match["path"], limit=f"{match['unit']} {limit}", random_share=share)
    name, number = match.groups() if (match := _AT_TEMPERATURE.fullmatch(text)) else (text, None)
    # Only paths may contain `:` or `@`.
    is_path = os.sep in name or Path(name).exists()
    if name in ("", "random") or (not is_path and (":" in name or "@" in name)) or (number is not None and float(number) == 0):
        raise _unreadable(text)
    return Contestant(text=text, model=name, temperature=None if number is None else float(number))


def _unreadable(text: str) -> ContestantError:
    return ContestantError(f"{text!r} is not a player; allowed are {ALLOWED}; {nearest(text.partition(':')[0], _WORDS)}".rstrip("; "))


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    player: "Player"
    about: str  # Text as typed, with run, step and hash, or engine and hash.
    move_probabilities: "MoveProbabilities | None" = None  # A policy's, for comments in games.


@contextmanager
def entered(
    contestants: Sequence[Contestant], machine: Machine, *, seed: int, says: Callable[[str], None] | None = None
) -> Iterator[list[Entrant]]:
    """Yield the opened players in order; their engines run until the block ends.

    An engine that names no legal move loses the game, and `says` gets a line. Without `says`, the engine's error ends the match. Raises
    ContestantError, EngineMissingError, or `find_policy`'s errors.
    """
    # Names are checked before the slow import of torch.
    policies = [_policy(contestant, machine) if contestant.model else None for contestant in contestants]
    from grpo.base.seeding import numpy_stream
    from grpo.match.players import DilutedPlayer, EnginePlayer, RandomPlayer

    def engine_entrant(contestant: Contestant, stream: tuple[str | int, ...]) -> Entrant:
        path = contestant.engine or machine.stockfish
        pool = stack.enter_context(EnginePool(path, num_processes=machine.num_engines, options={"Hash": PLAYING_HASH_MIB}))
        player: Player = EnginePlayer(pool, limit=contestant.limit, name=contestant.text, says=says)
        if contestant.random_share:
            player = DilutedPlayer(player, random_fraction=contestant.random_share, rng=numpy_stream(seed, *stream))
            player.name = contestant.text
        return Entrant(player=player, about=f"{contestant.text}: {identify(path)}")

    with ExitStack() as stack:
        entrants = []
        # Each player has its own random stream, because equal streams would give equal players the same numbers.
        for number, (contestant, policy) in enumerate(zip(contestants, policies, strict=True)):
            stream = ("contestant", number)
            if policy is not None:
                entrants.append(_policy_entrant(contestant, policy, machine, seed=seed, stream=stream))
            elif contestant.limit:
                entrants.append(engine_entrant(contestant, stream))
            else:
                entrants.append(Entrant(player=RandomPlayer(numpy_stream(seed, *stream)), about=contestant.text))
        yield entrants


def _policy(contestant: Contestant, machine: Machine) -> FoundPolicy:
    try:
        return find_policy(contestant.model, machine)
    except NotFoundError:
        if nearest(contestant.model, _WORDS):
            raise _unreadable(contestant.text) from None
        raise


def _policy_entrant(contestant: Contestant, named: FoundPolicy, machine: Machine, *, seed: int, stream: tuple[str | int, ...]) -> Entrant:
    from steps.common.policies.open import open_policy
    from steps.run.device import torch_device

    policy = open_policy(named.folder, torch_device(machine))
    about = f"{contestant.text}: run {named.run}, step {named.policy_step}, weights {named.weights_hash}"
    player = policy.player(contestant.text, temperature=contestant.temperature, seed=seed, stream=stream)
    return Entrant(player=player, about=about, move_probabilities=policy.move_probabilities)
