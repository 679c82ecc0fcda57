"""Metaflow cards of the steps that play games: ladder, baseline, screening, confirmation and selection."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo.match.intervals import Estimate, Unit, elo_estimate, paired_interval
from steps.cards.boards import decision_boards
from steps.cards.charts import Interval, interval_figure
from steps.cards.html import CardPart, TableCell, badge, block, contents, details, embedded, heading, html_table, paragraph
from steps.cards.state import Seen
from steps.pages.results import Decision, LadderReport, Placement
from steps.pages.templates import decision_table, gains, outcome, placed_together
from steps.run.names import CACHED_GAMES, DECISIONS, GAMES_PAGE


def ladder_page(seen: Seen) -> list[CardPart]:
    """Return the card of `calibrate`: the opponents' ratings and their games."""
    report = seen.report()
    parts: list[CardPart] = [block(heading("Ladder of opponents", 1), seen.state())]
    if report:
        parts += ladder_figure(LadderReport.of(report), {})
        parts.append(block(heading("Games"), _pairings(report["meetings"])))
    return parts


def baseline_page(seen: Seen) -> list[CardPart]:
    """Return the card of `baseline`: the strength of the pretrained policy before GRPO."""
    report, decisions = seen.report(), seen.report(DECISIONS)
    parts: list[CardPart] = [block(heading("Pretrained policy, before GRPO", 1), seen.state())]
    if report:
        matches = dict(report["matches"].items())
        matches |= {f"ladder: {part['rung']}": part for part in report["ladder"]["games"]}
        intervals = [_elo(name, match, "as played") for name, match in matches.items()]
        note = "Games with best moves, as played; clipped at 1,200 Elo."
        parts += [
            block(paragraph(f"Rating on the ladder, above a random mover: {report['ladder']['text']}")),
            interval_figure("Elo against each opponent", Unit.ELO, intervals, zero="even", note=note),
            block(html_table(["against", "score, 95 % interval", "games"], _match_rows(matches), wide=[0, 1])),
            block(heading("Held-out boards"), _heldout(report["heldout"])),
        ]
    if decisions:
        parts.append(decision_boards(decisions, whose="the pretrained policy"))
    return parts


def games_page(title: str, words: str, seen: Seen) -> list[CardPart]:
    """Return the card of precomputed games (`screen`, `confirm`), which `select` evaluates."""
    played = {match: [game["score"] for game in games] for match, games in seen.report(CACHED_GAMES).items() if games}
    rows: list[list[TableCell]] = [
        [match, len(scores), *(sum(score == one for score in scores) for one in (1.0, 0.5, 0.0)), sum(scores) / len(scores)]
        for match, scores in played.items()
    ]
    # The two games of an opening follow each other.
    pairs = {match: [(one + other) / 2 for one, other in zip(scores[::2], scores[1::2], strict=True)] for match, scores in played.items()}
    intervals = [_elo(match, asdict(paired_interval(scores)), "games of this task") for match, scores in pairs.items()]
    parts: list[CardPart] = [block(heading(title, 1), paragraph(words), seen.state())]
    if rows:
        note = "By pairs of games, as played. The verdict counts all games of all tasks together."
        parts.append(interval_figure("Elo against the pretrained policy", Unit.ELO, intervals, zero="pretrained", note=note))
        parts.append(block(html_table(["match", "games", "won", "drawn", "lost", "score"], rows, wide=[0])))
    return parts


def decision_page(seen: Seen) -> list[CardPart]:
    """Return the card of `select`: verdict, checkpoints with the peak ringed, boards, and the trace of the decision."""
    found, decisions = seen.report(), seen.report(DECISIONS)
    if not found:
        return [block(heading("Selection", 1), seen.state())]
    decision = Decision.of(found)
    parts: list[CardPart] = [block(heading("Checkpoints")), *checkpoint_figures(decision)]
    if decisions and decision.candidate_step is not None:
        parts.append(decision_boards(decisions, whose=f"step {decision.candidate_step:,}"))
    if (games := decision.confirmation_best_moves) is not None:
        ratings = (paragraph(f"Rating on the ladder, {who}: {place.text}") for who, place in placed_together(decision).items())
        trace = html_table(*decision_table(decision), wide=[0, 1])
        parts.append(
            block(
                heading("Details"),
                *ratings,
                details("Trace of the decision: each round, each claim with its p-value", trace),
                details("How the confirmation games ended", html_table(["end", "games"], list(games.ends.items()))),
            )
        )
    if viewer := embedded(seen.page(GAMES_PAGE), "Games to click through"):
        parts.append(block(heading("Games"), viewer))
    return [*verdict_parts(decision), contents(parts), *parts]


def verdict_parts(decision: Decision, origin: str = "") -> list[CardPart]:
    """Return the verdict: the sentence, who is champion, the gain as bars, and where start and candidate stand on the ladder.

    Args:
        decision: the report of `select`.
        origin: what a resumed run comes from, and what its verdict is against; empty for a new training.
    """
    mood = "good" if decision.promoted else "warning"
    told = [paragraph(text) for text in (decision.sentence, origin) if text]
    parts: list[CardPart] = [block(heading(f"Verdict: {decision.verdict}", 1), f"<p>{badge(outcome(decision), mood)}</p>", *told)]
    if (games := decision.confirmation_best_moves) is not None:
        note = (
            f"Gain of step {decision.candidate_step:,} over its start. One row decides: {games.num_pairs:,} pairs of games against the"
            " start, as played. Adjudicated: the same games, but those drawn by repetition, fifty moves or the ply cap count for the"
            " side that Stockfish finds better."
        )
        bars = [_interval(label, found, "games") for label, found in gains(decision).items()]
        parts.append(interval_figure("Gain in Elo, against", Unit.ELO, bars, zero="no gain", note=note))
    if placed := placed_together(decision):
        note = "Both met the same opponents on the same openings. The interval of the gain is narrower than those of the two ratings."
        bars = [_interval(who, place.estimate, "ladder") for who, place in placed.items()]
        parts.append(interval_figure("On the ladder: Elo above a random mover", Unit.ELO, bars, note=note))
    return parts


def checkpoint_figures(decision: Decision) -> list[CardPart]:
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
    figures: list[CardPart] = []
    if played:
        figures.append(interval_figure("Elo against the pretrained policy", Unit.ELO, played, zero="pretrained", note=note))
    if regrets:
        figures.append(interval_figure("Held-out regret of checkpoints", Unit.REGRET, regrets, note=regret_note))
    return figures


def ladder_figure(ladder: LadderReport, placed: Mapping[str, Placement]) -> list[CardPart]:
    """Return a figure of the ladder's rungs and the policies rated on it, from the highest down.

    Args:
        ladder: report of `calibrate`.
        placed: name of a policy -> its rating.
    """
    intervals = [_interval(each.name, _estimate(each.rating, each.low, each.high), "rung") for each in ladder.rungs]
    intervals += [
        _interval(who, _estimate(place.rating, place.low_of_all, place.high_of_all), "policy, best moves") for who, place in placed.items()
    ]
    intervals.sort(key=lambda interval: -interval.estimate.value)
    return [interval_figure("Ladder: Elo above a random mover", Unit.ELO, intervals, note=ladder.note)]


def _estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high)


def _elo(label: str, score: Mapping[str, Any], kind: str, *, is_ringed: bool = False) -> Interval:
    return _interval(label, elo_estimate(_estimate(score["score"], score["low"], score["high"])), kind, is_ringed=is_ringed)


def _interval(label: str, found: Estimate, kind: str, *, is_ringed: bool = False) -> Interval:
    return Interval(label=label, estimate=found, kind=kind, is_ringed=is_ringed)


def _match_rows(matches: Mapping[str, Mapping[str, Any]]) -> list[list[TableCell]]:
    return [
        [name, match["text"], f"{match['wins']:,} won, {match['draws']:,} drawn, {match['losses']:,} lost"]
        for name, match in matches.items()
    ]


def _pairings(pairings: Sequence[Mapping[str, Any]]) -> str:
    rows: list[list[TableCell]] = [
        [found["first"], found["second"], found["score"], found["low"], found["high"], found["expected"], found["num_pairs"]]
        for found in pairings
    ]
    return html_table(["first", "second", "score", "95 % from", "to", "expected by ratings", "pairs"], rows, wide=[0, 1])


def _heldout(metrics: Mapping[str, float]) -> str:
    from grpo.settings.metrics import METRICS

    rows: list[list[TableCell]] = [
        [name.removeprefix("heldout/"), value, METRICS[name].unit, METRICS[name].meaning] for name, value in metrics.items()
    ]
    return details("Held-out measurements", html_table(["", "value", "unit", "meaning"], rows, wide=[3]))
