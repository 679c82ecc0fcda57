"""Parses and opens players of a match: `champion`, `peak@0.5`, a folder, `random`, `stockfish:nodes=50`, `uci:/path/to/engine:depth=3`."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.errors import PlainError
from grpo.base.suggestions import nearest
from grpo.engine.identity import identify
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from steps.run.machine import Machine
from steps.track.find import POLICY_NAMES

if TYPE_CHECKING:
    import torch

    from grpo.match.annotations import MoveProbabilities
    from grpo.match.players import Player

RANDOM: Final = "random"
STOCKFISH: Final = "stockfish"
UCI: Final = "uci"
ALLOWED: Final = (
    f"{POLICY_NAMES}, with its best moves or, by @T, sampling at temperature T (champion@0.5); random;"
    " stockfish:nodes=50, stockfish:depth=3, stockfish:nodes=1,random=0.5; uci:/path/to/engine:nodes=100"
)

_MAX_LIMIT: Final[Mapping[str, int]] = {"nodes": 1_000_000_000, "depth": 100}


class ContestantError(PlainError, ValueError):
    """A text is not a player; the message says which part is invalid, and what is allowed."""


class PlayerKind(StrEnum):
    """What chooses the moves."""

    POLICY = "policy"
    ENGINE = "engine"
    RANDOM = "random"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """A parsed player that is not opened yet."""

    text: str
    """As the user wrote it."""
    kind: PlayerKind
    model: str = ""
    """For a policy: its name, one of `POLICY_NAMES`."""
    temperature: float | None = None
    """For a policy: None plays the best move."""
    engine: str | None = None
    """For an engine: its path; None is this machine's Stockfish."""
    limit: str = ""
    """For an engine: the arguments of UCI's `go`."""
    random_share: float = 0.0
    """For an engine: the probability that a move is random instead."""

    @property
    def is_deterministic(self) -> bool:
        """Whether it always plays the same move in the same position, provided that a policy is a network."""
        if self.kind == PlayerKind.POLICY:
            return self.temperature is None
        return self.kind == PlayerKind.ENGINE and not self.random_share


def parse_contestant(text: str) -> Contestant:
    """Return the player that a text names.

    Raises ContestantError, which says what is allowed.
    """
    word, colon, rest = text.partition(":")
    if text == RANDOM:
        return Contestant(text=text, kind=PlayerKind.RANDOM)
    if word == STOCKFISH:
        return _engine(text, None, rest)
    if word == UCI:
        path, _, settings = rest.rpartition(":")
        if not path:
            raise _unreadable(text, f"{UCI}: needs the engine's path and a limit, with a colon between")
        return _engine(text, path, settings)
    if colon and not Path(text).exists() and os.sep not in text:
        raise _unreadable(text, f"{word!r} is not a kind of player")
    return _policy(text)


def _policy(text: str) -> Contestant:
    name, at, number = text.rpartition("@")
    if not at or os.sep in number:  # A folder's name may have an @ of its own.
        name, number = text, ""
    if name == RANDOM:
        raise _unreadable(text, f"{RANDOM} is uniform and has no temperature")
    if not name or (at and name != text and not number):
        raise _unreadable(text, "a policy is NAME or NAME@TEMPERATURE")
    temperature = _real(text, "the temperature", number, below=math.inf, allowed="a number above 0") if at and number else None
    return Contestant(text=text, kind=PlayerKind.POLICY, model=name, temperature=temperature)


def _engine(text: str, path: str | None, settings: str) -> Contestant:
    allowed = ("nodes", "depth", "random")
    given: dict[str, str] = {}
    for setting in settings.split(","):
        key, equals, value = setting.partition("=")
        if not equals and key in allowed:
            raise _unreadable(text, f"{key!r} needs a number: {key}=...")
        if not equals or key not in allowed:
            if close := nearest(key, allowed):
                raise ContestantError(f"{text!r} is not a player: there is no {key!r}; {close.strip()}")
            raise _unreadable(text, f"{setting!r} is none of {', '.join(f'{name}=...' for name in allowed)}")
        if key in given:
            raise _unreadable(text, f"{key} is given twice")
        given[key] = value
    limits = [key for key in ("nodes", "depth") if key in given]
    if len(limits) != 1:
        raise _unreadable(text, "one of nodes=... and depth=... limits a move, and only one")
    limit = _whole(text, limits[0], given[limits[0]], least=1, most=_MAX_LIMIT[limits[0]])
    share = given.get("random")
    return Contestant(
        text=text,
        kind=PlayerKind.ENGINE,
        engine=path,
        limit=f"{limits[0]} {limit}",
        random_share=0.0 if share is None else _real(text, "random", share, below=1, allowed="a share between 0 and 1"),
    )


def _whole(text: str, what: str, value: str, *, least: int, most: int) -> int:
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
        raise _unreadable(text, f"{what} is {value!r} and must be a whole number from {least} to {most:,}")
    return int(value)


def _real(text: str, what: str, value: str, *, below: float, allowed: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < below:
        raise _unreadable(text, f"{what} is {value!r} and must be {allowed}")
    return number


def _unreadable(text: str, why: str) -> ContestantError:
    return ContestantError(f"{text!r} is not a player: {why}; allowed are {ALLOWED}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """An opened player and its facts."""

    contestant: Contestant
    player: "Player"
    facts: Mapping[str, Any]
    """Plain data: run, step and hash of a policy; name, hash and limit of an engine."""
    is_deterministic: bool
    """Whether it always plays the same move in the same position: then two of them play one game per opening."""
    move_probabilities: "MoveProbabilities | None" = None
    """Of a policy, for the notes of its games."""


def require_policies(contestants: Sequence[Contestant], machine: Machine) -> None:
    """Raise what `find_policy` raises if one of the players is a policy that is not there; torch is not imported."""
    from steps.track.find import find_policy

    for contestant in contestants:
        if contestant.kind == PlayerKind.POLICY:
            find_policy(contestant.model, machine, tells=False)  # Told when it is opened.


@contextmanager
def entered(
    contestants: Sequence[Contestant], *, machine: Machine, device: "torch.device", seed: int, num_processes: int
) -> Iterator[list[Entrant]]:
    """Yield the opened players in order; their engines run while the block lasts.

    Each has random streams of its own, even when a player plays against itself.

    Args:
        contestants: the players.
        machine: says where models and Stockfish are.
        device: device of policies.
        seed: root of the random streams.
        num_processes: processes per engine.

    Raises:
        NotFoundError: there is no such policy, and what else `find_policy` raises.
        EngineMissingError: there is no such engine.
    """
    with ExitStack() as stack:
        yield [
            _entrant(contestant, place, stack, machine=machine, device=device, seed=seed, num_processes=num_processes)
            for place, contestant in enumerate(contestants)
        ]


def _entrant(
    contestant: Contestant, place: int, stack: ExitStack, *, machine: Machine, device: "torch.device", seed: int, num_processes: int
) -> Entrant:
    from grpo.base.seeding import numpy_stream
    from grpo.match.players import DilutedPlayer, EnginePlayer, RandomPlayer

    base = {"player": contestant.text, "kind": contestant.kind.value}
    if contestant.kind == PlayerKind.RANDOM:
        player: Player = RandomPlayer(numpy_stream(seed, "contestant", place))
        return Entrant(contestant=contestant, player=player, facts=base, is_deterministic=contestant.is_deterministic)
    if contestant.kind == PlayerKind.POLICY:
        return _policy_entrant(contestant, place, base, machine=machine, device=device, seed=seed)
    path = machine.stockfish if contestant.engine is None else contestant.engine
    facts = {"engine": str(identify(path)), "limit": contestant.limit, "random_share": contestant.random_share}
    pool = stack.enter_context(EnginePool(path, num_processes=num_processes, options={"Hash": PLAYING_HASH_MIB}))
    player = EnginePlayer(pool, limit=contestant.limit, name=contestant.text)
    if contestant.random_share:
        player = DilutedPlayer(player, random_fraction=contestant.random_share, rng=numpy_stream(seed, "contestant", place))
        player.name = contestant.text
    return Entrant(contestant=contestant, player=player, facts={**base, **facts}, is_deterministic=contestant.is_deterministic)


def _policy_entrant(
    contestant: Contestant, place: int, base: Mapping[str, Any], *, machine: Machine, device: "torch.device", seed: int
) -> Entrant:
    from steps.policies.open import open_policy
    from steps.track.find import find_policy

    model = find_policy(contestant.model, machine)
    policy = open_policy(model.folder, device)
    facts = {
        **base,
        "run": model.run,
        "policy_step": model.policy_step,
        "weights_hash": model.weights_hash,
        "temperature": contestant.temperature,
        **policy.facts,
    }
    name, stream = contestant.text, ("contestant", place)
    if contestant.temperature is None:
        player = policy.best_player(name, seed=seed, stream=stream)
    else:
        player = policy.sampling_player(name, temperature=contestant.temperature, seed=seed, stream=stream)
    is_deterministic = contestant.is_deterministic and policy.is_deterministic
    return Entrant(
        contestant=contestant,
        player=player,
        facts=facts,
        is_deterministic=is_deterministic,
        move_probabilities=policy.move_probabilities,
    )
