"""The cards of `baseline`, `select` and `report`: games, the decision and the results, each with its interval."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from grpo.match.intervals import Estimate, Unit, elo_estimate
from steps.cards.boards import decision_boards
from steps.cards.charts import Interval, interval_figure
from steps.cards.page import CardPart, framed, page_part
from steps.cards.state import Seen
from steps.pages.results import Decision, LadderReport, Placement, Results
from steps.pages.templates import (
    decision_table,
    gains,
    measurement_table,
    origin_text,
    outcome,
    placed_together,
    regret_table,
    training_lines,
)
from steps.run.names import DECISIONS, GAMES_PAGE, RESULTS


def baseline_page(seen: Seen) -> list[CardPart]:
    """Return the card of `baseline`: the strength of the pretrained policy before GRPO."""
    report, decisions = seen.report(), seen.report(DECISIONS)
    figure = None
    matches: dict[str, Any] = {}
    if report:
        matches = report["matches"] | {f"ladder: {part['rung']}": part for part in report["ladder"]["games"]}
        bars = [
            _interval(name, elo_estimate(Estimate(value=match["score"], low=match["low"], high=match["high"])), "as played")
            for name, match in matches.items()
        ]
        note = "Games with best moves, as played; clipped at 1,200 Elo."
        figure = interval_figure("Elo against each opponent", Unit.ELO, bars, zero="even", note=note)
    boards = decision_boards(decisions, whose="the pretrained policy") if decisions else ""
    return [page_part("baseline", seen=seen, report=report, matches=matches, figure=figure, boards=boards)]


def decision_page(seen: Seen) -> list[CardPart]:
    """Return the card of `select`: verdict, checkpoints with the peak ringed, boards, and the trace of the decision."""
    found, decisions = seen.report(), seen.report(DECISIONS)
    if not found:
        return [page_part("select", seen=seen, decision=None)]
    decision = Decision.of(found)
    boards = (
        decision_boards(decisions, whose=f"step {decision.candidate_step:,}") if decisions and decision.candidate_step is not None else ""
    )
    facts = {"figures": _checkpoints(decision), "boards": boards, "viewer": framed(seen.page(GAMES_PAGE))}
    trace = {"trace": decision_table(decision), "placed": placed_together(decision)}
    return [page_part("select", seen=seen, decision=decision, **facts, **trace, **_verdict(decision))]


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, measurements, ladder and training; checkpoints and boards are on the card of `select`."""
    if not (found := seen.report(RESULTS)):
        return [page_part("report", seen=seen, decision=None)]
    results = Results.of(found)
    decision = results.decision
    tables = {"measured": measurement_table(results.measurements), "regret": regret_table(results)}
    training = [Markup(line) for line in training_lines(results)]  # noqa: S704  # They are escaped.
    facts = {"ladder": _ladder(results.ladder, placed_together(decision)), "training": training}
    return [page_part("report", seen=seen, decision=decision, **facts, **tables, **_verdict(decision, origin_text(results)))]


def _verdict(decision: Decision, origin: str = "") -> dict[str, Any]:
    """Return what the template of the verdict shows: who is champion, the gain as bars, start and candidate on the ladder."""
    gain = ladder = None
    if (games := decision.confirmation_best_moves) is not None:
        note = (
            f"Gain of step {decision.candidate_step:,} over its start. One row decides: {games.num_pairs:,} pairs of games against the"
            " start, as played. Adjudicated: the same games, but those drawn by repetition, fifty moves or the ply cap count for the"
            " side that Stockfish finds better."
        )
        bars = [_interval(label, found, "games") for label, found in gains(decision).items()]
        gain = interval_figure("Gain in Elo, against", Unit.ELO, bars, zero="no gain", note=note)
    if placed := placed_together(decision):
        note = "Both met the same opponents on the same openings. The interval of the gain is narrower than those of the two ratings."
        bars = [_interval(who, place.estimate, "ladder") for who, place in placed.items()]
        ladder = interval_figure("On the ladder: Elo above a random mover", Unit.ELO, bars, note=note)
    return {"gain": gain, "on_ladder": ladder, "outcome": outcome(decision), "origin": origin}


def _checkpoints(decision: Decision) -> list[Markup]:
    """Return figures of each checkpoint's Elo against the pretrained policy and of its held-out regret; the peak is ringed."""
    chosen, peak = decision.candidate_step, decision.peak_step
    screened = {entry.candidate: entry.so_far.estimate for entry in decision.screening}
    # The peak is ringed where it was measured: the candidate by the confirmation, others by the screening.
    played = [
        _interval(f"step {step:,}", elo_estimate(score), "screening", is_ringed=step == peak != chosen)
        for step, score in sorted(screened.items())
    ]
    if (games := decision.confirmation_best_moves) is not None:
        confirmed = elo_estimate(games.interval.estimate)
        played.append(_interval(f"step {chosen:,}, confirmed", confirmed, "confirmation, fresh games", is_ringed=chosen == peak))
    regrets = [
        _interval(f"step {step:,}", regret.estimate, "held-out boards", is_ringed=step == peak)
        for step, regret in sorted((int(step), regret) for step, regret in decision.heldout_regret_best.items())
    ]
    note = (
        f"Ringed: step {peak:,}, the peak, to resume from. Games count as played. The confirmation, which is"
        " independent of the choice of the candidate, decides."
    )
    regret_note = "Best moves, stronger search; lower is better. Regret selects candidates; games decide."
    figures = []
    if played:
        figures.append(interval_figure("Elo against the pretrained policy", Unit.ELO, played, zero="pretrained", note=note))
    if regrets:
        figures.append(interval_figure("Held-out regret of checkpoints", Unit.REGRET, regrets, note=regret_note))
    return figures


def _ladder(ladder: LadderReport, placed: Mapping[str, Placement]) -> Markup:
    """Return a figure of the ladder's rungs and the policies rated on it, from the highest down."""
    bars = [_interval(each.name, Estimate(value=each.rating, low=each.low, high=each.high), "rung") for each in ladder.rungs]
    bars += [
        _interval(who, Estimate(value=place.rating, low=place.low_of_all, high=place.high_of_all), "policy, best moves")
        for who, place in placed.items()
    ]
    bars.sort(key=lambda interval: -interval.estimate.value)
    return interval_figure("Ladder: Elo above a random mover", Unit.ELO, bars, note=ladder.note)


def _interval(label: str, found: Estimate, kind: str, *, is_ringed: bool = False) -> Interval:
    return Interval(label=label, estimate=found, kind=kind, is_ringed=is_ringed)
