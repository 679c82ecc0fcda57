"""Parses and opens players of a match: `champion`, `peak@0.5`, a folder, `random`, `stockfish:nodes=50`, `uci:/path/to/engine:depth=3`."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grpo.base.errors import PlainError
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
_ENGINE: Final = re.compile(
    r"(?:stockfish|uci:(?P<path>.+)):(?P<unit>nodes|depth)=(?P<limit>[0-9]{1,10})(?:,random=(?P<random>0?\.[0-9]+))?"
)
_AT_TEMPERATURE: Final = re.compile(r"(.+)@([0-9]+\.?[0-9]*|\.[0-9]+)")


class ContestantError(PlainError, ValueError):
    """A text is not a player; the message says what is allowed."""


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
    if text == RANDOM:
        return Contestant(text=text, kind=PlayerKind.RANDOM)
    if text.partition(":")[0] in (STOCKFISH, UCI):
        return _engine(text)
    name, number = match.groups() if (match := _AT_TEMPERATURE.fullmatch(text)) else (text, None)
    is_path = os.sep in name or Path(name).exists()
    if name in ("", RANDOM) or (not is_path and (":" in name or "@" in name)) or (number is not None and float(number) == 0):
        raise _unreadable(text)
    return Contestant(text=text, kind=PlayerKind.POLICY, model=name, temperature=None if number is None else float(number))


def _engine(text: str) -> Contestant:
    match = _ENGINE.fullmatch(text)
    limit, share = (0, 1.0) if match is None else (int(match["limit"]), float(match["random"] or 0))
    if match is None or not 1 <= limit <= _MAX_LIMIT[match["unit"]] or share >= 1:
        raise _unreadable(text)
    return Contestant(text=text, kind=PlayerKind.ENGINE, engine=match["path"], limit=f"{match['unit']} {limit}", random_share=share)


def _unreadable(text: str) -> ContestantError:
    return ContestantError(f"{text!r} is not a player; allowed are {ALLOWED}")


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
