"""The games that selection rests on: every stage on openings of its own, none of them a board of the dataset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch

from grpo.base.seeding import numpy_stream
from grpo.engine.move_values import engine_options
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.play.adjudication import adjudicate
from grpo.play.annotations import AnnotatedGame, annotate
from grpo.play.highlights import choose_highlights
from grpo.play.ladder import Ladder, LadderPlacement
from grpo.play.matches import MatchResult, play_match
from grpo.play.openings import make_openings
from grpo.play.pgn import match_pgn
from grpo.play.players import Player
from grpo.settings.tree import Settings
from steps.bodies.game_cache import PrecomputedGames, TaskPart, put_together
from steps.bodies.measure import num_ladder_openings, place_players
from steps.policies.open import Competitor, open_checkpoint
from steps.step_io.work import Work

SCREENING: Final = "screening"
CONFIRMATION: Final = "confirmation"
SAMPLED: Final = "sampled"
PREVIOUS: Final = "previous champion"
LADDER: Final = "ladder"
INITIAL: Final = "initial policy"
"""Its name as a player."""


class SelectionGames:
    """Plays checkpoints against the initial policy and the previous champion; as a context, it ends its engines."""

    def __init__(
        self,
        settings: Settings,
        initial: Competitor,
        checkpoints: Mapping[int, Path],
        previous: Competitor | None,
        *,
        used: set[str],
        engine_path: str,
        num_processes: int,
        device: torch.device,
        work: Work,
        precomputed: PrecomputedGames | None = None,
        share: TaskPart | None = None,
    ) -> None:
        """Play nothing yet.

        Args:
            settings: the run's.
            initial: the policy that candidates must beat.
            checkpoints: folder of each candidate, by step.
            previous: the registry's champion, if it is to be beaten too.
            used: `position_key` of what may not be an opening; those used are added.
            engine_path: Stockfish.
            num_processes: how many of it.
            device: of the policies.
            work: reports the progress.
            precomputed: games that other tasks have played already.
            share: play only this part of the games after the screening, for `precomputed`; their results alone mean nothing.
        """
        self._precomputed = PrecomputedGames() if precomputed is None else precomputed
        self._share = share
        self.played: dict[str, list[MatchResult]] = {}
        """By stage, in the order in which they were played."""
        self._settings, self._initial, self._checkpoints, self._previous = settings, initial, checkpoints, previous
        self._used, self._device, self._work = used, device, work
        self._engine_path, self._num_processes = engine_path, num_processes
        self._pool = EnginePool(engine_path, num_processes=num_processes, options={"Hash": PLAYING_HASH_MIB})
        self._rounds: dict[int, list[str]] = {}
        self._policies: dict[int, Competitor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()

    def screening(self, candidate: int, round_number: int) -> list[float]:
        """Return a candidate's pair scores of a round, whose openings all candidates share."""
        if round_number not in self._rounds:
            self._rounds[round_number] = self._openings(f"{SCREENING} {round_number}", self._settings.selection.num_screening_pairs)
        return self._against_initial(candidate, SCREENING, round_number, self._rounds[round_number]).pair_scores()

    def confirmation(self, candidate: int) -> MatchResult:
        """Return a candidate's games against the initial policy on fresh openings."""
        openings = self._openings(f"{CONFIRMATION} 0", self._settings.selection.num_confirmation_pairs)
        return self._against_initial(candidate, CONFIRMATION, 0, openings)

    def against_previous(self, candidate: int) -> MatchResult:
        """Return a candidate's games against the previous champion on further fresh openings."""
        assert self._previous is not None
        openings = self._openings(f"{PREVIOUS} 0", self._settings.selection.num_confirmation_pairs)
        previous = self._previous.best_player(PREVIOUS, seed=self._settings.seed, stream=("asked again", PREVIOUS, 0))
        return self._play(self._best(candidate, PREVIOUS, 0), previous, PREVIOUS, openings)

    def sampled(self, candidate: int) -> MatchResult:
        """Return the games of both policies' sampled moves at T = 1."""
        seed = self._settings.seed
        return self._play(
            self.policy(candidate).sampling_player(f"step {candidate}, T = 1", temperature=1.0, seed=seed, stream=(SAMPLED, "candidate")),
            self._initial.sampling_player(f"{INITIAL}, T = 1", temperature=1.0, seed=seed, stream=(SAMPLED, "initial")),
            SAMPLED,
            self._openings(SAMPLED, self._settings.selection.num_sampled_pairs),
        )

    def placed(self, candidate: int, ladder: Ladder) -> tuple[LadderPlacement, LadderPlacement]:
        """Return where a candidate and the initial policy stand on the ladder, by the same rungs and openings.

        Their retries draw the same random numbers too, so that equal policies play equal games.
        """
        stream = ("asked again", LADDER)
        num_games = 2 * 2 * num_ladder_openings(ladder, self._settings.evaluation)
        players = [
            policy.best_player(name, seed=self._settings.seed, stream=stream)
            for policy, name in ((self.policy(candidate), f"step {candidate}"), (self._initial, INITIAL))
        ]
        of_candidate, of_initial = place_players(
            players,
            ladder,
            config=self._settings.evaluation,
            seed=self._settings.seed,
            purpose="candidate",
            pool=self._pool,
            exclude=self._used,
            on_games_done=lambda done: self._work.progress(done, num_games, f"{LADDER} games at most"),
        )
        self.played[LADDER] = [part.result for placement in (of_candidate, of_initial) for part in (*placement.probes, *placement.games)]
        return of_candidate, of_initial

    def for_others(self) -> PrecomputedGames:
        """Return all games so far, to be played by nobody else."""
        precomputed = PrecomputedGames()
        for stage, results in self.played.items():
            for result in results:
                precomputed.add(self._match(stage, result.first), result.games)
        return precomputed

    def highlights(self, candidate: int, confirmed: MatchResult) -> tuple[AnnotatedGame, ...]:
        """Return the confirmation games worth looking at, with both policies' probabilities and the scores of the reward's search."""
        values = self._settings.values
        policies = (self.policy(candidate).move_probabilities, self._initial.move_probabilities)
        with EnginePool(self._engine_path, num_processes=self._num_processes, options=engine_options(values)) as pool:
            return annotate(confirmed, choose_highlights(confirmed), policies=policies, pool=pool, config=values)

    def pgn(self, highlights: Sequence[AnnotatedGame]) -> str:
        """Return all games without a date, stage after stage; rounds count through a stage. `highlights` are of the confirmation."""
        texts = []
        for stage, results in self.played.items():
            start = 0
            for result in results:
                texts.append(
                    match_pgn(
                        result,
                        event=stage,
                        seed=self._settings.seed,
                        played_on=None,  # A date would give two equal runs different outputs.
                        first_round=start // 2 + 1,
                        annotated={game.index: game for game in highlights} if stage == CONFIRMATION else {},
                    )
                )
                start += len(result.games)
        return "\n".join(texts)

    def _against_initial(self, candidate: int, stage: str, number: int, openings: Sequence[str]) -> MatchResult:
        initial = self._initial.best_player(INITIAL, seed=self._settings.seed, stream=("asked again", stage, number, "initial"))
        return self._play(self._best(candidate, stage, number), initial, stage, openings)

    def _best(self, candidate: int, stage: str, number: int) -> Player:
        """Return a candidate's best moves for one of a stage's matches; a retry draws from a stream of its own in each match."""
        stream = ("asked again", stage, number, "candidate")
        return self.policy(candidate).best_player(f"step {candidate}", seed=self._settings.seed, stream=stream)

    def policy(self, candidate: int) -> Competitor:
        """Return a candidate's policy, loaded when it is first asked for."""
        if candidate not in self._policies:
            self._policies[candidate] = open_checkpoint(self._checkpoints[candidate], self._device, rules=self._settings.language)
        return self._policies[candidate]

    def _openings(self, stage: str, count: int) -> list[str]:
        rng = numpy_stream(self._settings.seed, "openings", stage)
        return make_openings(self._settings.evaluation, count=count, rng=rng, pool=self._pool, exclude=self._used)

    def _play(self, first: Player, second: Player, stage: str, openings: Sequence[str]) -> MatchResult:
        config = self._settings.evaluation
        known = self._precomputed.pairs(self._match(stage, first.name))
        missing = [number for number, opening in enumerate(openings) if opening not in known]
        if self._share is not None and stage != SCREENING:
            missing = self._share.of(missing)
        result = play_match(
            first,
            second,
            [openings[number] for number in missing],
            max_plies=config.max_plies,
            on_games_done=lambda done: self._work.progress(done, 2 * len(missing), f"{stage} games"),
            numbers=missing,
        )
        adjudicated = adjudicate(result, self._pool, depth=config.adjudication_depth, centipawns=config.adjudication_centipawns)
        adjudicated = put_together(known, adjudicated, openings)
        self.played.setdefault(stage, []).append(adjudicated)
        return adjudicated

    def _match(self, stage: str, first: str) -> str:
        """Return the key of precomputed games; the registry's champion may be another one by now."""
        if stage == PREVIOUS:
            assert self._previous is not None
            return f"{stage} {self._previous.weights}: {first}"
        return f"{stage}: {first}"
