"""Let checkpoints compete on fresh games, and say which policy may be called the champion."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from grpo.base.files import copy_folder, write_json
from grpo.board.phases import PHASES
from grpo.evaluation.halving import HalvingTrace, sequential_halving
from grpo.evaluation.phase_guard import PhaseChange, phase_changes
from grpo.evaluation.regret import HeldoutScores
from grpo.evaluation.verdict import Decision, LadderGain, decide, peak_step
from grpo.metrics.table import Record
from grpo.play.ladder import ladder_difference
from grpo.play.viewer import viewer_page
from grpo.policy.files import policy_file_names
from grpo.settings.tree import SelectionConfig, Settings
from grpo.statistics.intervals import Estimate, ScoreInterval, elo_estimate
from steps.bodies.game_cache import PrecomputedGames
from steps.bodies.measure import match_facts, placement_facts, read_ladder
from steps.bodies.screen import Contest
from steps.bodies.selection_games import CONFIRMATION, SelectionGames
from steps.step_io.aliases import CHAMPION, PEAK, PRETRAINED_STEP
from steps.step_io.dataset import position_keys, read_boards
from steps.step_io.names import DECISIONS, GAMES_PAGE, PGN, REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="select",
    body=__name__,
    reads="select",
    inputs=("boards", "pretrained", "ladder", "finetuned", "engine", "device", "opening book", "previous"),
    shown=(
        "selection/score_best",
        "selection/score_best_low",
        "selection/score_best_high",
        "selection/ladder_gain",
        "selection/ladder_gain_low",
        "selection/ladder_gain_high",
        "selection/score_sampled",
    ),
    published=(REPORT, DECISIONS, GAMES_PAGE, PGN),
)


def select_champion(
    settings: Settings,
    *,
    boards: Path,
    pretrained: Path,
    finetuned: Path,
    calibrated: Path,
    previous: Path | None,
    engine_path: str,
    num_processes: int,
    device: torch.device,
    work: Work,
    precomputed: Sequence[Path] = (),
) -> None:
    """Write the champion's policy, the peak's whole checkpoint, all games, and the decision with all it rests on.

    Args:
        settings: the run's.
        boards: folder of the joined dataset.
        pretrained: folder of the initial policy.
        finetuned: folder of checkpoints and their history.
        calibrated: folder of the ladder.
        previous: folder of the registry's champion, None when there is none but this run's own.
        engine_path: Stockfish.
        num_processes: how many of it.
        device: of the policies.
        work: the folder to fill, and the sinks.
        precomputed: folders of games that other tasks have played already; missing ones are played here, so that they only save time.

    Raises SelectionError when no checkpoint was measured on held-out boards.
    """
    config = settings.selection
    contest = Contest.open(settings, pretrained=pretrained, finetuned=finetuned, previous=previous, device=device)
    initial, checkpoints, regrets, previous_champion = contest.initial, contest.checkpoints, contest.regrets, contest.previous_champion
    with SelectionGames(
        settings,
        initial,
        {step: checkpoints[step] for step in contest.candidates},
        previous_champion,
        used=position_keys(boards),
        engine_path=engine_path,
        num_processes=num_processes,
        device=device,
        work=work,
        precomputed=PrecomputedGames.read(precomputed),
    ) as games:
        trace = sequential_halving(contest.candidates, games.screening)
        chosen = trace.winner
        confirmed = games.confirmation(chosen)
        against_previous = None if previous_champion is None else games.against_previous(chosen)
        sampled = games.sampled(chosen)
        ladder = read_ladder(calibrated)
        of_candidate, of_initial = games.placed(chosen, ladder)
        gain = LadderGain(
            played=ladder_difference(ladder, of_candidate, of_initial, adjudicated=False),
            adjudicated=ladder_difference(ladder, of_candidate, of_initial, adjudicated=True),
        )
        candidate = games.policy(chosen)
        table = read_boards(boards)
        phases = _phase_changes(candidate.scores(table), initial.scores(table), config)
        candidate.write_decisions(work.folder, table, before=initial)
        decision = decide(
            chosen,
            against_initial=confirmed.pair_scores(),
            against_previous=None if against_previous is None else against_previous.pair_scores(),
            beside={
                "best moves, adjudicated": confirmed.pair_scores(adjudicated=True),
                "sampled moves at T = 1, as played": sampled.pair_scores(),
            },
            ladder_gain=gain,
            phases=phases,
        )
        # Of the chosen one the confirmation counts: its screening games are those that it was chosen by.
        against_start = {**trace.intervals(), chosen: confirmed.interval()}
        peak = peak_step(games=against_start, regrets=regrets)
        scores = {"best": confirmed.interval(), "adjudicated": confirmed.interval(adjudicated=True), "sampled": sampled.interval()}
        if against_previous is not None:
            scores["previous"] = against_previous.interval()
        work.record(
            Record(
                chosen,
                {name: value for moves, interval in scores.items() for name, value in _score_metrics(f"score_{moves}", interval).items()}
                | _gain_metrics("selection/verdict_elo", elo_estimate(confirmed.interval().estimate))
                | {"selection/heldout_regret": regrets[chosen].mean}
                | _estimate_metrics("selection/rating", of_candidate.rating, of_candidate.low, of_candidate.high)
                | _estimate_metrics("selection/rating_pretrained", of_initial.rating, of_initial.low, of_initial.high)
                | _gain_metrics("selection/ladder_gain", gain.played)
                | _gain_metrics("selection/ladder_gain_adjudicated", gain.adjudicated),
            )
        )
        highlights = games.highlights(chosen, confirmed)
        (work.folder / PGN).write_text(games.pgn(highlights), encoding="utf-8")
        title = f"Step {chosen:,} against its own start: games worth looking at"
        (work.folder / GAMES_PAGE).write_text(viewer_page(highlights, title=title, event=CONFIRMATION), encoding="utf-8")
        champion = checkpoints[chosen] if decision.promoted else pretrained
        copy_folder(checkpoints[peak], work.folder / PEAK)
        (work.folder / CHAMPION).mkdir()
        for name in policy_file_names(champion):
            shutil.copy(champion / name, work.folder / CHAMPION / name)
        write_json(
            work.folder / REPORT,
            _decision_facts(decision, trace)
            | {
                "champion_step": chosen if decision.promoted else PRETRAINED_STEP,
                "peak_step": peak,
                "peak_low": against_start[peak].low,
                "initial_weights": initial.weights,
                "candidate_weights": candidate.weights,
                "heldout_regret_best": {str(step): asdict(regret) for step, regret in regrets.items()},
                "confirmation_best_moves": match_facts(confirmed),
                "confirmation_sampled_moves": match_facts(sampled),
                "previous_champion": None if against_previous is None else match_facts(against_previous),
                "ladder": placement_facts(of_candidate, ladder),
                "ladder_initial": placement_facts(of_initial, ladder),
            },
        )


def _phase_changes(after: HeldoutScores, before: HeldoutScores, config: SelectionConfig) -> tuple[PhaseChange, ...]:
    differences = {
        phase.value: (after.regret_best - before.regret_best)[before.phases == index].tolist() for index, phase in enumerate(PHASES)
    }
    return phase_changes({phase: values for phase, values in differences.items() if len(values) > 1}, tolerance=config.phase_tolerance)


def _decision_facts(decision: Decision, trace: HalvingTrace) -> dict[str, Any]:
    """Return decision and trace as plain data."""
    return {
        "verdict": decision.verdict,
        "candidate_step": decision.candidate,
        "promoted": decision.promoted,
        "replaces_previous": decision.replaces_previous,
        "sentence": decision.sentence,
        "claims": _texts(decision.claims),
        "beside": _texts(decision.beside),
        "ladder_gain": asdict(decision.ladder_gain) | {"finding": decision.ladder_gain.finding, "text": str(decision.ladder_gain)},
        "phases": [asdict(change) for change in decision.phases],
        "screening": [asdict(entry) | {"text": str(entry.so_far)} for entry in trace.entries],
    }


def _texts(claims: Sequence[Any]) -> list[dict[str, Any]]:
    return [asdict(claim) | {"text": str(claim.interval)} for claim in claims]


def _score_metrics(name: str, interval: ScoreInterval) -> dict[str, float]:
    return _estimate_metrics(f"selection/{name}", interval.score, interval.low, interval.high)


def _gain_metrics(name: str, gain: Estimate) -> dict[str, float]:
    return _estimate_metrics(name, gain.value, gain.low, gain.high)


def _estimate_metrics(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}
