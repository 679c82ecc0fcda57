"""Games of the steps.

Adjudication turns some draws into a win for a side that an engine finds clearly better. The ladder is a set of rated engine opponents
("rungs").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydantic import RootModel

from grpo.base.documents import read_document
from grpo.base.seeding import numpy_stream
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.match.forks import num_forks
from grpo.match.ladder import Ladder, LadderPairing, PlacedGames, place_on_ladder
from grpo.match.matches import MatchResult, Pairing, PlayedGame, adjudicate, play_matches
from grpo.match.openings import make_openings
from grpo.match.players import Player
from grpo.metrics.shared import interval_names
from grpo.policy.files import checkpoint_name
from grpo.settings.tree import Settings
from grpo.statistics.intervals import Estimate
from steps.names import CHECKPOINTS, REPORT
from steps.run.machine import Machine
from steps.run.work import Work

SCREENING: Final = "screening"
CONFIRMATION: Final = "confirmation"
PREVIOUS: Final = "previous champion"
SAMPLED: Final = "sampled"
LADDER: Final = "ladder"
"""The five stages of games that choose a champion. No two stages share an opening."""
FRESH: Final = (CONFIRMATION, PREVIOUS, SAMPLED)  # Stages that `confirm` plays.
INITIAL: Final = "initial policy"  # Name of the pretrained policy as a player.


def playing_engines(machine: Machine) -> EnginePool:
    return EnginePool(machine.stockfish, num_processes=machine.num_engines, options={"Hash": PLAYING_HASH_MIB})


class Arena:
    def __init__(self, settings: Settings, machine: Machine, progress: Callable[[int, int, str], None]) -> None:
        """Start no engine yet. `progress` gets the numbers of finished and expected games, and a label. Raises EngineMissingError."""
        self.config, self._seed, self._progress = settings.evaluation, settings.seed, progress
        self._num_processes = machine.num_threads
        self.pool = playing_engines(machine)
        self._num_done, self._num_expected, self._unit = 0, 0, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.pool.close()

    def expect(self, num_games: int, unit: str) -> None:
        """Restart the progress at 0, with the label `unit`."""
        self._num_done, self._num_expected, self._unit = 0, num_games, unit

    def openings(self, count: int, exclude: set[str], *stream: str) -> list[str]:
        """Draw openings (FENs) outside `exclude`, and add their keys to `exclude`. `stream` names the random stream."""
        return make_openings(self.config, count=count, rng=numpy_stream(self._seed, "openings", *stream), pool=self.pool, exclude=exclude)

    def match(self, first: Player, second: Player, openings: Sequence[str] | Mapping[int, str]) -> MatchResult:
        """Play one match and adjudicate."""
        [result] = self.matches([Pairing(first=first, second=second, openings=openings)])
        return result

    def matches(self, pairings: Sequence[Pairing]) -> list[MatchResult]:
        """Play matches at the same time, and adjudicate."""
        before = self._num_done
        results = play_matches(
            pairings,
            max_plies=self.config.max_plies,
            on_games_done=lambda done: self._progress(before + done, self._num_expected, self._unit),
            num_processes=num_forks(self._num_processes),
        )
        self._num_done += sum(len(result.games) for result in results)
        return [adjudicate(result, self.pool) for result in results]

    def place(self, players: Sequence[Player], ladder: Ladder, openings: Sequence[str], purpose: str) -> tuple[PlacedGames, ...]:
        """Play the games that rate one or two players on the ladder. `purpose` names the rungs' random streams.

        `openings`: at least `num_openings_to_place` FENs.
        """
        # An opening's index selects the rung's random numbers, so both players meet equal numbers.
        indices = {opening: index for index, opening in enumerate(openings)}

        def pairing(asked: LadderPairing) -> Pairing:
            opponent = asked.rung.player(self.pool, numpy_stream(self._seed, "placement", purpose, asked.rung.name))
            numbered = {indices[opening]: opening for opening in asked.openings}
            return Pairing(first=players[asked.player], second=opponent, openings=numbered)

        def play(pairings: Sequence[LadderPairing]) -> list[MatchResult]:
            return self.matches([pairing(asked) for asked in pairings])

        return place_on_ladder(len(players), play, ladder, openings, self.config)


def read_ladder(calibrated: Path) -> Ladder:
    return read_document(calibrated / REPORT, Ladder)


def interval_metrics(name: str, estimate: Estimate) -> dict[str, float]:
    return dict(zip(interval_names(name), (estimate.value, estimate.low, estimate.high), strict=True))


def checkpoint(work: Work, step: int) -> Path:
    return work.inputs["finetune"] / CHECKPOINTS / checkpoint_name(step)


def screening_match(candidate: int, number: int) -> str:
    """Return the key in `ScreeningGames`. `candidate`: step; `number`: round, from 0."""
    return f"{SCREENING}, round {number + 1}: step {candidate}"


def player_names(stage: str, candidate: int) -> tuple[str, str]:
    if stage == SAMPLED:
        return f"step {candidate}, T = 1", f"{INITIAL}, T = 1"
    return f"step {candidate}", PREVIOUS if stage == PREVIOUS else INITIAL


class ScreeningGames(RootModel[dict[str, tuple[PlayedGame, ...]]]):
    """Games of `screen`, by `screening_match`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedGame(PlayedGame):
    """A game of `confirm`."""

    pair: int  # Index of the game's opening in the match.

    @classmethod
    def of(cls, game: PlayedGame, *, pair: int) -> Self:
        return cls(**{field.name: getattr(game, field.name) for field in fields(game)}, pair=pair)


class SharedGames(RootModel[dict[str, tuple[SharedGame, ...]]]):
    """This task's games of `confirm`, by stage."""


PREVIOUS_POLICY: Final = "previous"  # Folder in the output of `screen`.
