"""Judge the candidate by games played after it was chosen, and choose the champion (to play) and the peak (to resume from)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grpo.base.documents import read_document, write_document
from grpo.base.files import copy_folder
from grpo.board.phases import PHASES
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.match.ladder import PlacedGames, Placement, ladder_difference
from grpo.match.matches import MatchResult, PlayedGame
from grpo.match.selection import Selection
from grpo.metrics.records import Record
from grpo.metrics.shared import PRETRAINED_STEP, interval_names
from grpo.policy.files import copy_policy
from grpo.statistics.halving import Screened
from grpo.statistics.intervals import REPEATED_Z, Estimate, elo_estimate
from grpo.statistics.phase_guard import phase_changes
from grpo.statistics.verdict import Decision, LadderGain, decide, decide_without_candidate, peak_step
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
    says="Decides by the fresh games whether the candidate is significantly better than the pretrained policy and than the"
    " previous champion. Registers two policies: `champion`, to play, and `peak`, to resume from.",
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
"""A candidate is not promoted if its held-out regret is shown to have grown by more than this (win probability) in any phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Contest:
    """The candidate, the initial policy (pretrained, before GRPO), and the games that judge them."""

    step: int  # The candidate's checkpoint.
    candidate: Competitor
    initial: Competitor
    screened: Screened
    played: Mapping[str, MatchResult]  # Stage -> match; a previous champion is not always played.
    ladder_games: tuple[PlacedGames, PlacedGames]  # Candidate's and initial policy's games, against the same rungs from the same openings.
    places: tuple[Placement, Placement]  # Candidate's and initial policy's ratings from these games.
    gain: LadderGain

    @property
    def confirmed(self) -> MatchResult:
        """Match between candidate and initial policy with best moves: the games that decide."""
        return self.played[CONFIRMATION]

    def against_start(self) -> dict[int, Estimate]:
        """Return checkpoint -> score against the initial policy, for the candidate from later games than those that chose it."""
        return {entry.candidate: entry.so_far for entry in self.screened.screening} | {self.step: self.confirmed.interval()}


def body(work: Work) -> None:
    """Write the champion's policy, the peak's checkpoint, all games, and the decision with its measurements.

    If no checkpoint could play, the pretrained policy is champion and peak.
    """
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
        contest = _contest(work, screened, screened.candidate_step)
        report = _selection(contest, _decide(work, contest))
        work.log(Record(contest.step, _metrics(contest)))
        _write_games(work, contest)
        copy_folder(checkpoint(work, report.peak_step), work.folder / PEAK)
        copy_policy(checkpoint(work, contest.step) if report.promoted else pretrained, work.folder / CHAMPION)
    write_document(work.folder / REPORT, report)


def _contest(work: Work, screened: Screened, step: int) -> _Contest:
    """Read the games that tasks of `confirm` have played, and play those against the ladder."""
    openings = screened.openings
    stages = [stage for stage in FRESH if stage in openings]
    played: dict[str, MatchResult] = {stage: _match(work, stage, step, openings[stage]) for stage in stages}
    ladder = read_ladder(work.inputs["calibrate"])
    candidate = open_policy(checkpoint(work, step), work.device, settings=work.settings)
    initial = open_policy(work.inputs["pretrain"], work.device, settings=work.settings)
    # Both policies share one random stream for a language model's second answers, so equal policies play equal games.
    players = [
        policy.player(name, temperature=None, seed=work.settings.seed, stream=("asked again", LADDER))
        for policy, name in zip((candidate, initial), player_names(LADDER, step), strict=True)
    ]
    with Arena(work.settings, work.machine, work.progress) as arena:
        arena.expect(2 * len(players) * len(openings[LADDER]), f"{LADDER} games at most")
        of_candidate, of_initial = arena.place(players, ladder, openings[LADDER], "candidate")
    gain = LadderGain(
        played=ladder_difference(ladder, of_candidate, of_initial, adjudicated=False),
        adjudicated=ladder_difference(ladder, of_candidate, of_initial, adjudicated=True),
        num_pairs=of_candidate.games[0].result.interval().num_pairs,
        num_planned=len(REPEATED_Z) * work.settings.evaluation.num_rung_pairs,
    )
    return _Contest(
        step=step,
        candidate=candidate,
        initial=initial,
        screened=screened,
        played=played,
        ladder_games=(of_candidate, of_initial),
        places=(of_candidate.placement(ladder), of_initial.placement(ladder)),
        gain=gain,
    )


def _match(work: Work, stage: str, step: int, openings: Sequence[str]) -> MatchResult:
    """Join the tasks' shares of a stage into one match, in the order of its openings."""
    parts = [read_document(folder / CACHED_GAMES, SharedGames).root for folder in work.parts]
    games = sorted((game for part in parts for game in part.get(stage, ())), key=lambda game: game.pair)
    assert [game.opening for game in games] == [opening for opening in openings for _ in range(2)], f"{stage}: pairs are missing"
    return _adjudicated(player_names(stage, step), games)


def _adjudicated(names: tuple[str, str], games: Sequence[PlayedGame]) -> MatchResult:
    return MatchResult(first=names[0], second=names[1], games=tuple(games), is_adjudicated=True)


def _decide(work: Work, contest: _Contest) -> Decision:
    """Return the verdict, and write the candidate's notable decisions on held-out boards."""
    table, candidate, initial = read_boards(work.inputs["join_boards"]), contest.candidate, contest.initial
    after, before = candidate.scores(table), initial.scores(table)
    candidate.write_decisions(work.folder, table, before=initial)
    by_board = after.regret_best - before.regret_best
    differences = {phase.value: by_board[before.phases == index].tolist() for index, phase in enumerate(PHASES)}
    compared = {phase: values for phase, values in differences.items() if len(values) > 1}
    return decide(
        contest.step,
        against_initial=contest.confirmed.pair_scores(),
        against_previous=contest.played[PREVIOUS].pair_scores() if PREVIOUS in contest.played else None,
        beside={
            "best moves, adjudicated": contest.confirmed.pair_scores(adjudicated=True),
            "sampled moves at T = 1, as played": contest.played[SAMPLED].pair_scores(),
        },
        ladder_gain=contest.gain,
        phases=phase_changes(compared, tolerance=_PHASE_TOLERANCE),
    )


def _write_games(work: Work, contest: _Contest) -> None:
    """Write all games as PGN, and a viewer of the notable confirmation games."""
    machine, confirmed = work.machine, contest.confirmed
    policies = (contest.candidate.move_probabilities, contest.initial.move_probabilities)
    with EnginePool(machine.stockfish, num_processes=machine.num_threads, options=engine_options()) as pool:
        annotated = annotate(confirmed, policies, pool, depth=work.settings.boards.depth)
    stages = {
        SCREENING: _screening(work, contest.screened),
        **{stage: [result] for stage, result in contest.played.items()},
        LADDER: [part.result for player in contest.ladder_games for part in (*player.probes, *player.games)],
    }
    notes = {CONFIRMATION: annotated}
    texts = [event_pgn(found, event=stage, seed=work.settings.seed, annotated=notes.get(stage)) for stage, found in stages.items() if found]
    (work.folder / PGN).write_text("\n".join(texts), encoding="utf-8")
    title = f"Step {contest.step:,} against its own start: games worth looking at"
    (work.folder / GAMES_PAGE).write_text(viewer_page(confirmed, annotated, title=title, event=CONFIRMATION), encoding="utf-8")


def _screening(work: Work, screened: Screened) -> list[MatchResult]:
    """Return the screening's matches in the order of play."""
    games = read_document(work.inputs["screen"] / CACHED_GAMES, ScreeningGames).root
    played = {screening_match(entry.candidate, entry.round): entry.candidate for entry in screened.screening}
    return [_adjudicated(player_names(SCREENING, step), games[match]) for match, step in played.items()]


def _selection(contest: _Contest, decision: Decision) -> Selection:
    scores, played, (place, place_of_initial) = contest.against_start(), contest.played, contest.places
    peak = peak_step(scores)
    return Selection(
        **dict(decision),
        champion_step=contest.step if decision.promoted else PRETRAINED_STEP,
        peak_step=peak,
        peak=scores[peak],
        screening=contest.screened.screening,
        heldout_regret_best=contest.screened.heldout_regret_best,
        confirmation_best_moves=contest.confirmed.report(),
        confirmation_sampled_moves=played[SAMPLED].report(),
        previous_champion=played[PREVIOUS].report() if PREVIOUS in played else None,
        previous_weights=contest.screened.previous_weights,
        ladder=place,
        ladder_initial=place_of_initial,
        initial_weights=contest.initial.weights,
        candidate_weights=contest.candidate.weights,
    )


def _metrics(contest: _Contest) -> dict[str, float]:
    """Return scores, gains and ratings with their intervals, and the candidate's held-out regret."""
    names = {CONFIRMATION: "best", SAMPLED: "sampled", PREVIOUS: "previous"}
    place, place_of_initial = contest.places
    found = {
        **{f"score_{names[stage]}": result.interval() for stage, result in contest.played.items()},
        "verdict_elo": elo_estimate(contest.confirmed.interval()),
        "ladder_gain": contest.gain.played,
        "rating": place.rating,
        "rating_pretrained": place_of_initial.rating,
    }
    metrics = {of: value for name, each in found.items() for of, value in interval_metrics(f"selection/{name}", each).items()}
    return metrics | {"selection/heldout_regret": contest.screened.heldout_regret_best[contest.step].value}


def card(seen: Seen) -> list[CardPart]:
    """Return the card: verdict, checkpoints, boards, games. The card of `report` has gain and ladder."""
    from steps.cards.pages import checkpoint_charts, decision_boards  # Imports Altair (0.5 s), which only a card needs.

    if (decision := seen.document(Selection)) is None:
        return [page_part("verdict", seen=seen, decision=None)]
    boards = decision_boards(seen.document(Decisions, DECISIONS), whose=f"step {decision.candidate_step}")
    games = page_part("games", decision=decision, viewer=seen.read(GAMES_PAGE))
    head = page_part("verdict", seen=seen, decision=decision, more=[])
    return [head, *checkpoint_charts(decision), *boards, games]
