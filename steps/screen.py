"""The step `screen` selects the candidate, and stores the previous champion and the openings of all later games.

- Held-out regret: the best move's win probability minus the likeliest move's, mean over held-out boards.
- Initial policy: the pretrained policy. Previous champion: the registry's, from an earlier run.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from grpo.base.documents import write_document
from grpo.match.ladder import num_openings_to_place
from grpo.match.matches import Pairing, PlayedGame
from grpo.policy.checkpoints import checkpoint_folders, checkpoint_step
from grpo.policy.files import copy_policy
from grpo.statistics.halving import HalvingTrace, Screened, sequential_halving
from grpo.statistics.intervals import Estimate, regret_interval
from grpo.statistics.verdict import candidates_by_regret
from steps.common.dataset import position_keys
from steps.common.measure import (
    CONFIRMATION,
    LADDER,
    PREVIOUS,
    PREVIOUS_POLICY,
    SAMPLED,
    SCREENING,
    Arena,
    ScreeningGames,
    checkpoint,
    player_names,
    screening_match,
)
from steps.common.policies.competitor import Competitor
from steps.common.policies.open import open_policy
from steps.names import CACHED_GAMES, CHECKPOINTS, REPORT
from steps.run.step import OfRun, Outside, Step
from steps.run.work import Work, read_history

STEP: Final = Step(
    name="screen",
    says="Selects one candidate among a few checkpoints by games against the pretrained policy (sequential halving): the last, unless"
    " another is shown to be better.",
    reads=("seed", "evaluation", "selection"),
    reads_kind=True,
    inputs=("join_boards", "pretrain", "finetune"),
    outside=(Outside.ENGINE, Outside.DEVICE, Outside.BOOK),
    of_run=(OfRun.CHAMPION,),
    resources="games",
)


def body(work: Work) -> None:
    checkpoints = {checkpoint_step(folder) for folder in checkpoint_folders(work.inputs["finetune"] / CHECKPOINTS)}
    regrets = _regrets(work.inputs["finetune"], checkpoints)
    steps = candidates_by_regret({step: regret.value for step, regret in regrets.items()}, count=work.settings.selection.num_candidates)
    if not steps:
        reason = f"none of {len(checkpoints):,} checkpoints has a finite held-out regret"
        write_document(work.folder / REPORT, Screened(candidate_step=None, reason=reason, heldout_regret_best=regrets, openings={}))
        write_document(work.folder / CACHED_GAMES, ScreeningGames({}))
        return
    candidates = {step: open_policy(checkpoint(work, step), work.device, settings=work.settings) for step in steps}
    initial = open_policy(work.inputs["pretrain"], work.device, settings=work.settings)
    previous_weights = _keep_previous(work, initial)
    used = position_keys(work.inputs["join_boards"])
    with Arena(work.settings, work.machine, work.progress) as arena:
        trace, games = _halving(work, arena, initial, candidates, used)
        openings = _openings(work, arena, used, is_previous_played=previous_weights is not None)
    report = Screened(
        candidate_step=trace.winner,
        reason="",
        heldout_regret_best=regrets,
        screening=trace.entries,
        openings=openings,
        previous_weights=previous_weights,
    )
    write_document(work.folder / REPORT, report)
    write_document(work.folder / CACHED_GAMES, ScreeningGames(games))


def _regrets(finetuned: Path, checkpoints: set[int]) -> dict[int, Estimate]:
    """Return a checkpoint's step -> held-out regret, if finite."""
    regrets = {}
    for record in read_history(finetuned):
        best, stderr, sampled = (record.metrics.get(f"heldout/regret_{name}") for name in ("best", "best_stderr", "sampled"))
        # With NaN probabilities the likeliest move can have a finite regret, but the regret of sampled moves is NaN.
        if record.step in checkpoints and best is not None and stderr is not None and math.isfinite(best + (sampled or 0.0)):
            regrets[record.step] = regret_interval(best, stderr)
    return regrets


def _keep_previous(work: Work, initial: Competitor) -> str | None:
    """Copy the previous champion, unless it is the initial policy. Return the weights' hash; None without a copy."""
    folder = work.of_run.get(OfRun.CHAMPION)
    if folder is None:
        return None
    weights = open_policy(folder, work.device, settings=work.settings).weights
    if weights == initial.weights:
        return None
    copy_policy(folder, work.folder / PREVIOUS_POLICY)
    return weights


def _halving(
    work: Work, arena: Arena, initial: Competitor, candidates: Mapping[int, Competitor], used: set[str]
) -> tuple[HalvingTrace, dict[str, tuple[PlayedGame, ...]]]:
    """Return the rounds, and key (`screening_match`) -> games."""
    games: dict[str, tuple[PlayedGame, ...]] = {}

    def pairing(candidate: int, number: int, openings: Sequence[str]) -> Pairing:
        name, initial_name = player_names(SCREENING, candidate)
        stream, seed = ("asked again", SCREENING, number), work.settings.seed  # Only for a language model's retries.
        first = candidates[candidate].player(name, temperature=None, seed=seed, stream=(*stream, "candidate"))
        second = initial.player(initial_name, temperature=None, seed=seed, stream=(*stream, "initial"))
        return Pairing(first=first, second=second, openings=openings)

    def play(remaining: Sequence[int], number: int) -> dict[int, list[float]]:
        openings = arena.openings(work.settings.selection.num_screening_pairs, used, f"{SCREENING} {number}")
        arena.expect(2 * len(openings) * len(remaining), f"{SCREENING} games")
        played = arena.matches([pairing(candidate, number, openings) for candidate in remaining])
        results = dict(zip(remaining, played, strict=True))
        games.update({screening_match(candidate, number): result.games for candidate, result in results.items()})
        return {candidate: result.pair_scores() for candidate, result in results.items()}

    return sequential_halving(list(candidates), play), games


def _openings(work: Work, arena: Arena, used: set[str], *, is_previous_played: bool) -> dict[str, list[str]]:
    """Return stage -> openings for the later stages. Each draw adds to `used`, so no two stages share an opening."""
    config = work.settings.selection
    openings = {CONFIRMATION: arena.openings(config.num_confirmation_pairs, used, f"{CONFIRMATION} 0")}
    if is_previous_played:
        openings[PREVIOUS] = arena.openings(config.num_confirmation_pairs, used, f"{PREVIOUS} 0")
    openings[SAMPLED] = arena.openings(config.num_sampled_pairs, used, SAMPLED)
    openings[LADDER] = arena.openings(num_openings_to_place(2, arena.config), used, "placement", "candidate")
    return openings
