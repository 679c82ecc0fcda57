"""Judge the candidate, the checkpoint that `screen` chose.

`confirm` has played the candidate's matches:
- CONFIRMATION: best moves, against the initial (pretrained) policy
- SAMPLED: moves sampled at T = 1, against the initial policy
- PREVIOUS: against the registry's champion

This step plays the ladder of rated engine opponents ("rungs").
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from grpo.base.documents import read_document, write_document
from grpo.base.files import copy_folder
from grpo.board.phases import PHASES
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.match.forks import num_forks
from grpo.match.ladder import Ladder, PlacedGames, ladder_difference
from grpo.match.matches import MatchResult, PlayedGame
from grpo.match.selection import Selection
from grpo.metrics.records import Record
from grpo.metrics.shared import PRETRAINED_STEP, interval_names
from grpo.policy.files import copy_policy
from grpo.statistics.halving import Screened
from grpo.statistics.intervals import REPEATED_Z, Estimate, elo_estimate
from grpo.statistics.phase_guard import PhaseChange, phase_changes
from grpo.statistics.verdict import Decision, LadderGain, decide, decide_without_candidate
from grpo.viewer.annotations import annotate
from grpo.viewer.decisions import Decisions
from grpo.viewer.page import viewer_page
from grpo.viewer.pgn import event_pgn
from steps.cards.page import CardPart, Seen, page_part
from steps.common.dataset import read_boards
from steps.common.measure import (
    CONFIRMATION,
    FRESH,
    LADDER,
    PREVIOUS,
    SAMPLED,
    SCREENING,
    Arena,
    ScreeningGames,
    SharedGame,
    SharedGames,
    checkpoint,
    interval_metrics,
    player_names,
    read_ladder,
    screening_match,
)
from steps.common.policies.competitor import Competitor
from steps.common.policies.open import open_policy
from steps.names import CACHED_GAMES, CHAMPION, DECISIONS, GAMES_PAGE, PEAK, PGN, REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="select",
    says="Decides, by games played after the candidate was chosen, whether it is significantly better than the pretrained policy and"
    " the previous champion. Chooses two policies: `champion`, to play, and `peak`, to resume from.",
    reads=("seed", "boards.depth", "evaluation", "selection"),
    reads_kind=True,
    inputs=("join_boards", "pretrain", "calibrate", "finetune", "screen"),
    outside=(Outside.ENGINE, Outside.DEVICE),
    shows=(*interval_names("selection/score_best"), *interval_names("selection/ladder_gain"), "selection/score_sampled"),
    pages=(REPORT, DECISIONS, GAMES_PAGE, PGN),
    headlines=(
        *(*interval_names("selection/verdict_elo"), *interval_names("selection/score_best")),
        *(f"selection/{name}" for name in ("ladder_gain", "heldout_regret", "rating", "rating_pretrained")),
    ),
    resources="games",
)
_PHASE_TOLERANCE: Final = 0.01
"""Win probability. A candidate whose held-out regret in a game phase grew by significantly more is not promoted."""


def body(work: Work) -> None:
    """Without a candidate, the pretrained policy is champion and peak."""
    screened, pretrained = read_document(work.inputs["screen"] / REPORT, Screened), work.inputs["pretrain"]
    if screened.candidate_step is None:
        for name in (CHAMPION, PEAK):
            copy_policy(pretrained, work.folder / name)
        report = Selection(
            **dict(decide_without_candidate(screened.reason)),
            champion_step=PRETRAINED_STEP,
            peak_step=PRETRAINED_STEP,
            heldout_regret_best=screened.heldout_regret_best,
            initial_weights=open_policy(pretrained, work.device).weights,
        )
    else:
        report = _judge(work, screened, screened.candidate_step)
        copy_folder(checkpoint(work, report.peak_step), work.folder / PEAK)  # Includes the optimizer's state.
        copy_policy(checkpoint(work, report.champion_step) if report.promoted else pretrained, work.folder / CHAMPION)
    write_document(work.folder / REPORT, report)


def _judge(work: Work, screened: Screened, step: int) -> Selection:
    openings, ladder = screened.openings, read_ladder(work.inputs["calibrate"])
    boards = read_boards(work.inputs["join_boards"])
    screening_games = read_document(work.inputs["screen"] / CACHED_GAMES, ScreeningGames).root
    shares = [read_document(folder / CACHED_GAMES, SharedGames).root for folder in work.parts]
    matches: dict[str, MatchResult] = {stage: _shared_match(shares, stage, step, openings[stage]) for stage in FRESH if stage in openings}
    confirmed, previous = matches[CONFIRMATION], matches.get(PREVIOUS)
    folders = checkpoint(work, step), work.inputs["pretrain"]
    candidate, initial = policies = tuple(open_policy(folder, work.device, settings=work.settings) for folder in folders)
    ladder_games = _play_ladder(work, policies, step, ladder, openings[LADDER])
    placement, initial_placement = (games.placement(ladder) for games in ladder_games)
    gain = LadderGain(
        played=ladder_difference(ladder, *ladder_games, adjudicated=False),
        adjudicated=ladder_difference(ladder, *ladder_games, adjudicated=True),
        num_pairs=ladder_games[0].games[0].result.interval().num_pairs,
        num_planned=len(REPEATED_Z) * work.settings.evaluation.num_rung_pairs,  # One part of the games per value.
    )
    decision = _decide(step, matches, gain, _phase_changes(boards, candidate, initial))
    candidate.write_decisions(work.folder, boards, before=initial)
    ladder_matches = [part.result for games in ladder_games for part in (*games.probes, *games.games)]
    stages = {
        SCREENING: _screening_matches(screening_games, screened),
        **{stage: [match] for stage, match in matches.items()},
        LADDER: ladder_matches,
    }
    _write_games(work, step, policies, stages)
    ratings = {"rating": placement.rating, "rating_pretrained": initial_placement.rating, "ladder_gain": gain.played}
    regret = {"selection/heldout_regret": screened.heldout_regret_best[step].value}
    work.log(Record(step, _metrics(matches, ratings) | regret))
    return Selection(
        **dict(decision),
        champion_step=step if decision.promoted else PRETRAINED_STEP,
        peak_step=step,
        peak=confirmed.interval(),
        screening=screened.screening,
        heldout_regret_best=screened.heldout_regret_best,
        confirmation_best_moves=confirmed.report(),
        confirmation_sampled_moves=matches[SAMPLED].report(),
        previous_champion=None if previous is None else previous.report(),
        previous_weights=screened.previous_weights,
        ladder=placement,
        ladder_initial=initial_placement,
        initial_weights=initial.weights,
        candidate_weights=candidate.weights,
    )


def _shared_match(shares: Sequence[Mapping[str, Sequence[SharedGame]]], stage: str, step: int, openings: Sequence[str]) -> MatchResult:
    # The sort is stable, so a pair's games keep their order.
    games = sorted((game for share in shares for game in share.get(stage, ())), key=lambda game: game.pair)
    assert [game.opening for game in games] == [opening for opening in openings for _ in range(2)], f"{stage}: pairs are missing"
    return _match_result(stage, step, games)


def _match_result(stage: str, step: int, games: Sequence[PlayedGame]) -> MatchResult:
    first, second = player_names(stage, step)
    return MatchResult(first=first, second=second, games=tuple(games), is_adjudicated=True)


def _play_ladder(
    work: Work, policies: Sequence[Competitor], step: int, ladder: Ladder, openings: Sequence[str]
) -> tuple[PlacedGames, PlacedGames]:
    # Both policies use the same random stream (for a language model's retries), so equal policies play equal games.
    players = [
        policy.player(name, temperature=None, seed=work.settings.seed, stream=("asked again", LADDER))
        for policy, name in zip(policies, player_names(LADDER, step), strict=True)
    ]
    with Arena(work.settings, work.machine, work.progress) as arena:
        arena.expect(2 * len(players) * len(openings), f"{LADDER} games at most")
        candidate, initial = arena.place(players, ladder, openings, "candidate")
    return candidate, initial


def _phase_changes(boards: pa.Table, candidate: Competitor, initial: Competitor) -> tuple[PhaseChange, ...]:
    after, before = candidate.scores(boards), initial.scores(boards)
    by_board = after.regret_best - before.regret_best
    by_phase = {phase.value: by_board[before.phases == index].tolist() for index, phase in enumerate(PHASES)}
    return phase_changes({phase: changes for phase, changes in by_phase.items() if len(changes) > 1}, tolerance=_PHASE_TOLERANCE)


def _decide(step: int, matches: Mapping[str, MatchResult], gain: LadderGain, phases: Sequence[PhaseChange]) -> Decision:
    confirmed = matches[CONFIRMATION]
    return decide(
        step,
        against_initial=confirmed.pair_scores(),
        against_previous=matches[PREVIOUS].pair_scores() if PREVIOUS in matches else None,
        beside={
            "best moves, adjudicated": confirmed.pair_scores(adjudicated=True),
            "sampled moves at T = 1, as played": matches[SAMPLED].pair_scores(),
        },
        ladder_gain=gain,
        phases=phases,
    )


def _screening_matches(games: Mapping[str, Sequence[PlayedGame]], screened: Screened) -> list[MatchResult]:
    played = {screening_match(entry.candidate, entry.round): entry.candidate for entry in screened.screening}
    return [_match_result(SCREENING, step, games[match]) for match, step in played.items()]


def _write_games(work: Work, step: int, policies: Sequence[Competitor], stages: Mapping[str, Sequence[MatchResult]]) -> None:
    machine, [confirmed] = work.machine, stages[CONFIRMATION]
    candidate, initial = (policy.move_probabilities for policy in policies)
    with EnginePool(machine.stockfish, num_processes=machine.num_engines, options=engine_options()) as pool:
        annotated = annotate(confirmed, (candidate, initial), pool, depth=work.settings.boards.depth)
    notes = {CONFIRMATION: annotated}
    texts = [
        event_pgn(matches, event=stage, seed=work.settings.seed, annotated=notes.get(stage), num_processes=num_forks(machine.num_threads))
        for stage, matches in stages.items()
        if matches
    ]
    (work.folder / PGN).write_text("\n".join(texts), encoding="utf-8")
    title = f"Step {step:,} against the pretrained policy: games worth looking at"
    (work.folder / GAMES_PAGE).write_text(viewer_page(confirmed, annotated, title=title, event=CONFIRMATION), encoding="utf-8")


def _metrics(matches: Mapping[str, MatchResult], ratings: Mapping[str, Estimate]) -> dict[str, float]:
    names = {CONFIRMATION: "best", SAMPLED: "sampled", PREVIOUS: "previous"}
    scores = {f"score_{names[stage]}": match.interval() for stage, match in matches.items()}
    estimates = scores | {"verdict_elo": elo_estimate(scores["score_best"]), **ratings}
    parts = [interval_metrics(f"selection/{name}", estimate) for name, estimate in estimates.items()]
    return {metric: value for part in parts for metric, value in part.items()}


def card(seen: Seen) -> list[CardPart]:
    from steps.cards.pages import checkpoint_charts, decision_boards

    if (decision := seen.document(Selection)) is None:
        return [page_part("verdict", seen=seen, decision=None)]
    boards = decision_boards(seen.document(Decisions, DECISIONS), whose=f"step {decision.candidate_step}")
    games = page_part("games", decision=decision, viewer=seen.read(GAMES_PAGE))
    head = page_part("verdict", seen=seen, decision=decision, more=[])
    return [head, *checkpoint_charts(decision), *boards, games]
