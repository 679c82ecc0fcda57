"""Let checkpoints compete on fresh games, and say which policy may be called the champion."""

import shutil
from pathlib import Path
from typing import Final

import torch

from grpo.checkpoints import POLICY, WEIGHTS, checkpoint_folders, checkpoint_step, load_checkpoint, load_policy, weights_hash
from grpo.config import Settings
from grpo.content import write_json
from grpo.engine import EnginePool
from grpo.matches import MatchResult, play_match
from grpo.metrics import Record
from grpo.openings import make_openings
from grpo.players import BestMovePlayer, Player, SamplingPlayer
from grpo.policy import NetworkPolicy
from grpo.seeding import numpy_stream, torch_stream
from grpo.selection import Verdict, best_by_screening, candidates_by_regret, decide, peak_step
from grpo.statistics import ScoreInterval
from steps.baseline import ENGINE_HASH_MIB, match_facts
from steps.boards import board_keys
from steps.finetuning import CHECKPOINTS
from steps.work import Work, read_history

REPORT: Final = "report.json"
CHAMPION: Final = "champion"
PEAK: Final = "peak"
PRETRAINED_STEP: Final = 0


def select_champion(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    finetuned: Path,
    engine_path: str,
    num_processes: int,
    device: torch.device,
    work: Work,
) -> None:
    """Write the champion's policy, the peak's whole checkpoint, and the decision with all it rests on."""
    start, _ = load_policy(pretrained, device)
    folders = {checkpoint_step(folder): folder for folder in checkpoint_folders(finetuned / CHECKPOINTS)}
    regrets = {
        record.step: record.metrics["heldout/regret_best"]
        for record in read_history(finetuned)
        if record.step in folders and "heldout/regret_best" in record.metrics
    }
    candidates = candidates_by_regret(regrets, settings.selection.num_candidates)
    policies = {step: load_checkpoint(folders[step], device)[0] for step in candidates}
    games = _Games(settings, start, board_keys(boards), engine_path, num_processes, work=work, num_candidates=len(candidates))
    screening = {step: games.best_moves(policies[step], step, "screening") for step in candidates}
    intervals = {step: result.interval() for step, result in screening.items()}
    chosen = best_by_screening(intervals)
    best, sampled = games.best_moves(policies[chosen], chosen, "confirmation"), games.sampled_moves(policies[chosen], chosen)
    decision = decide(chosen, best.interval(), sampled.interval())
    work.record(Record(chosen, _score_metrics("best", decision.best_moves) | _score_metrics("sampled", decision.sampled_moves)))
    is_better = decision.verdict == Verdict.BETTER
    peak = peak_step(regrets, intervals)
    shutil.copytree(folders[peak], work.folder / PEAK)
    (work.folder / CHAMPION).mkdir()
    for name in (WEIGHTS, POLICY):
        shutil.copy(folders[chosen] / name if is_better else pretrained / name, work.folder / CHAMPION / name)
    write_json(
        work.folder / REPORT,
        {
            "verdict": decision.verdict,
            "candidate_step": chosen,
            "champion_step": chosen if is_better else PRETRAINED_STEP,
            "promoted": is_better,
            "peak_step": peak,
            "peak_low": intervals[peak].low if peak in intervals else None,
            "initial_weights": weights_hash(start),
            "heldout_regret_best": {str(step): regret for step, regret in regrets.items()},
            "screening": {str(step): match_facts(result) for step, result in screening.items()},
            "confirmation_best_moves": match_facts(best),
            "confirmation_sampled_moves": match_facts(sampled),
        },
    )


class _Games:
    """Plays candidates against the pretrained policy; no opening serves two stages, or is a board of the dataset."""

    def __init__(
        self,
        settings: Settings,
        start: NetworkPolicy,
        used: set[str],
        engine_path: str,
        num_processes: int,
        *,
        work: Work,
        num_candidates: int,
    ) -> None:
        self._settings = settings
        self._start = start
        self._work = work
        selection = settings.selection
        counts = {
            "screening": selection.num_screening_pairs,
            "confirmation": selection.num_confirmation_pairs,
            "sampled": selection.num_confirmation_pairs,
        }
        self._total = 2 * (num_candidates * counts["screening"] + counts["confirmation"] + counts["sampled"])
        self._done = 0
        with EnginePool(engine_path, num_processes=num_processes, options={"Hash": ENGINE_HASH_MIB}) as pool:
            self._openings = {
                stage: make_openings(
                    settings.evaluation, count=count, rng=numpy_stream(settings.seed, "openings", stage), pool=pool, exclude=used
                )
                for stage, count in counts.items()
            }

    def best_moves(self, policy: NetworkPolicy, step: int, stage: str) -> MatchResult:
        return self._play(BestMovePlayer(policy, f"step {step}"), BestMovePlayer(self._start, "pretrained"), stage)

    def sampled_moves(self, policy: NetworkPolicy, step: int) -> MatchResult:
        rngs = [torch_stream(self._settings.seed, "sampled", who) for who in ("candidate", "pretrained")]
        return self._play(
            SamplingPlayer(policy, f"step {step}", temperature=1.0, rng=rngs[0]),
            SamplingPlayer(self._start, "pretrained", temperature=1.0, rng=rngs[1]),
            "sampled",
        )

    def _play(self, first: Player, second: Player, stage: str) -> MatchResult:
        before = self._done
        result = play_match(
            first,
            second,
            self._openings[stage],
            max_plies=self._settings.evaluation.max_plies,
            on_games_done=lambda done: self._work.progress(before + done, self._total, "games"),
        )
        self._done += len(result.games)
        return result


def _score_metrics(moves: str, interval: ScoreInterval) -> dict[str, float]:
    name = f"selection/score_{moves}"
    return {name: interval.score, f"{name}_low": interval.low, f"{name}_high": interval.high}
