"""Which candidates are screened; and the games of the selection, precomputed by several tasks: the screening by one, the rest by many."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import torch

from grpo.base.errors import PlainError
from grpo.evaluation.halving import sequential_halving
from grpo.evaluation.verdict import RegretEstimate, candidates_by_regret
from grpo.learning.checkpoints import checkpoint_folders, checkpoint_step
from grpo.settings.tree import Settings
from steps.bodies.game_cache import PrecomputedGames, TaskPart
from steps.bodies.selection_games import SelectionGames
from steps.policies.open import Competitor, open_policy
from steps.step_io.dataset import position_keys
from steps.step_io.names import CHECKPOINTS
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work, read_history

SPEC: Final = StepSpec(
    name="screen",
    body=__name__,
    reads="select",
    inputs=("boards", "pretrained", "ladder", "finetuned", "engine", "device", "opening book", "previous"),
    is_archived=False,  # All of its games are among those of `select`.
)
CONFIRM_SPEC: Final = replace(SPEC, name="confirm", inputs=(*SPEC.inputs, "screened"))


class SelectionError(PlainError, ValueError):
    """There is no checkpoint to choose; the message says what is there, and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contest:
    """The candidates and their opponents."""

    initial: Competitor
    checkpoints: Mapping[int, Path]
    """Folder of each, by step."""
    regrets: Mapping[int, RegretEstimate]
    """Held-out regret of those that have one."""
    candidates: list[int]
    """Steps of the candidates that play, lowest regret first."""
    previous_champion: Competitor | None
    """The previous champion, where it is another one than the initial policy."""

    @classmethod
    def open(cls, settings: Settings, *, pretrained: Path, finetuned: Path, previous: Path | None, device: torch.device) -> Self:
        """Return the contest; raises SelectionError when no checkpoint was measured on held-out boards."""
        initial = open_policy(pretrained, device, rules=settings.language)
        checkpoints = {checkpoint_step(folder): folder for folder in checkpoint_folders(finetuned / CHECKPOINTS)}
        regrets = _regrets(finetuned, checkpoints)
        if not regrets:
            raise SelectionError(
                f"{finetuned} holds {len(checkpoints)} checkpoints, and its history a finite held-out regret of none of them, so that"
                " nothing can be chosen: its report says why GRPO ended; let it come to a checkpoint (grpo.num_steps,"
                " grpo.steps_per_checkpoint)"
            )
        return cls(
            initial=initial,
            checkpoints=checkpoints,
            regrets=regrets,
            candidates=candidates_by_regret({step: regret.mean for step, regret in regrets.items()}, settings.selection.num_candidates),
            previous_champion=_previous_champion(previous, initial, settings, device),
        )


def precompute_games(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    finetuned: Path,
    previous: Path | None,
    screened: Path | None,
    share: TaskPart | None,
    engine_path: str,
    num_processes: int,
    device: torch.device,
    work: Work,
) -> None:
    """Write games that the step `select` will need: the screening, or with that at hand a share of those that come after it.

    Args:
        settings: the run's.
        boards: folder of the joined dataset.
        pretrained: folder of the initial policy.
        finetuned: folder of checkpoints and their history.
        previous: folder of the registry's champion, None when there is none but this run's own.
        screened: folder of the screening, None to play it.
        share: which part of the games after the screening.
        engine_path: Stockfish.
        num_processes: how many of it.
        device: of the policies.
        work: the folder to fill, and the sinks.

    Raises SelectionError when no checkpoint was measured on held-out boards.
    """
    contest = Contest.open(settings, pretrained=pretrained, finetuned=finetuned, previous=previous, device=device)
    with SelectionGames(
        settings,
        contest.initial,
        {step: contest.checkpoints[step] for step in contest.candidates},
        contest.previous_champion,
        used=position_keys(boards),
        engine_path=engine_path,
        num_processes=num_processes,
        device=device,
        work=work,
        precomputed=PrecomputedGames.read([] if screened is None else [screened]),
        share=share,
    ) as games:
        chosen = sequential_halving(contest.candidates, games.screening).winner
        if share is None:
            games.for_others().write(work.folder)
            return
        games.played.clear()  # The screening is there already.
        games.confirmation(chosen)
        if contest.previous_champion is not None:
            games.against_previous(chosen)
        games.sampled(chosen)
        games.for_others().write(work.folder)


def _regrets(finetuned: Path, checkpoints: Mapping[int, Path]) -> dict[int, RegretEstimate]:
    """Return the held-out regret of each checkpoint that is there; one whose regret is NaN or infinite is no candidate."""
    return {
        record.step: RegretEstimate(mean=record.metrics["heldout/regret_best"], stderr=record.metrics["heldout/regret_best_stderr"])
        for record in read_history(finetuned)
        if record.step in checkpoints and math.isfinite(record.metrics.get("heldout/regret_best", math.nan))
    }


def _previous_champion(previous: Path | None, initial: Competitor, settings: Settings, device: torch.device) -> Competitor | None:
    """Return the previous champion, None when it is the initial policy: then the first claim says it all."""
    if previous is None:
        return None
    policy = open_policy(previous, device, rules=settings.language)
    return None if policy.weights == initial.weights else policy
