"""The cards of `check_boards`, `baseline`, `select` and `report`: text of the output's own pages, and numbers with their intervals."""

from grpo.match.intervals import Estimate, Unit, elo_estimate
from steps.cards.boards import decision_boards
from steps.cards.charts import Interval, interval_parts
from steps.cards.page import markdown_part, page_part
from steps.cards.state import CardPart, Seen
from steps.names import DECISIONS, GAMES_PAGE, RESULTS, SUMMARY
from steps.pages.results import Decision, LadderReport, Results
from steps.pages.templates import page


def checks_page(seen: Seen) -> list[CardPart]:
    """Return the card of `check_boards`: each check, and the summary of the dataset."""
    report = seen.read()
    head = page_part("checks", seen=seen, suites=report.get("suites", []))
    if not report:
        return [head]
    return [head, markdown_part(seen.read(SUMMARY)), page_part("rejected", games=report["dataset"]["first_rejected"])]


def baseline_page(seen: Seen) -> list[CardPart]:
    """Return the card of `baseline`: the strength of the pretrained policy before GRPO."""
    report = seen.read()
    if not report:
        return [page_part("baseline", seen=seen, report={}, matches={})]
    matches = report["matches"] | {f"ladder: {part['rung']}": part for part in report["ladder"]["games"]}
    bars = [
        Interval(name, elo_estimate(Estimate(value=match["score"], low=match["low"], high=match["high"])), "as played")
        for name, match in matches.items()
    ]
    note = "Games with best moves, as played; clipped at 1,200 Elo."
    figure = interval_parts("Elo against each opponent", Unit.ELO, bars, zero="even", note=note)
    head = page_part("baseline", seen=seen, report=report, matches=matches)
    return [head, *figure, *decision_boards(seen.read(DECISIONS), whose="the pretrained policy")]


def decision_page(seen: Seen) -> list[CardPart]:
    """Return the card of `select`: verdict, checkpoints with the peak ringed, boards, and games to click through."""
    if not (found := seen.read()):
        return [page_part("verdict", seen=seen, decision=None)]
    decision = Decision.model_validate(found)
    boards = decision_boards(seen.read(DECISIONS), whose=f"step {decision.candidate_step}")
    return [
        *_verdict(seen, decision),
        *_checkpoints(decision),
        *boards,
        page_part("games", decision=decision, viewer=seen.read(GAMES_PAGE)),
    ]


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, ladder, and the report; checkpoints and boards are on the card of `select`."""
    if not (found := seen.read(RESULTS)):
        return [page_part("verdict", seen=seen, decision=None)]
    results = Results.model_validate(found)
    ladder = _ladder(results.ladder, results.decision)
    return [*_verdict(seen, results.decision, str(results.origin or "")), *ladder, markdown_part(page("report_card", results=results))]


def _verdict(seen: Seen, decision: Decision, origin: str = "") -> list[CardPart]:
    """Return who is champion, the gain as bars, start and candidate on the ladder."""
    head = page_part("verdict", seen=seen, decision=decision, origin=origin)
    note = "Adjudicated: games drawn by repetition, fifty moves or the ply cap count for the side that Stockfish finds better."
    bars = [Interval(label, found, "games") for label, found in decision.gains.items()]
    gain = interval_parts("Gain in Elo, against", Unit.ELO, bars, zero="no gain", note=note)
    note = "Both met the same opponents on the same openings. The interval of the gain is narrower than those of the two ratings."
    bars = [Interval(who, place.estimate, "ladder") for who, place in decision.placed.items()]
    return [head, *gain, *interval_parts("On the ladder: Elo above a random mover", Unit.ELO, bars, note=note)]


def _checkpoints(decision: Decision) -> list[CardPart]:
    """Return charts of each checkpoint's Elo against the pretrained policy and of its held-out regret; the peak is ringed."""
    chosen, peak = decision.candidate_step, decision.peak_step
    screened = {entry.candidate: elo_estimate(entry.so_far.estimate) for entry in decision.screening}
    # The peak is ringed where it was measured: the candidate by the confirmation, others by the screening.
    played = [Interval(f"step {step:,}", gain, "screening", is_ringed=step == peak != chosen) for step, gain in sorted(screened.items())]
    if (games := decision.confirmation_best_moves) is not None:
        confirmed = elo_estimate(games.estimate)
        played.append(Interval(f"step {chosen:,}, confirmed", confirmed, "confirmation, fresh games", is_ringed=chosen == peak))
    regrets = [
        Interval(f"step {step:,}", regret.estimate, "held-out boards", is_ringed=step == peak)
        for step, regret in sorted((int(step), regret) for step, regret in decision.heldout_regret_best.items())
    ]
    note = f"Ringed: step {peak:,}, the peak, to resume from. The confirmation, of games played after the choice, decides."
    regret_note = "Best moves, stronger search; lower is better. Regret selects candidates; games decide."
    return [
        *interval_parts("Checkpoints: Elo against the pretrained policy", Unit.ELO, played, zero="pretrained", note=note),
        *interval_parts("Checkpoints: held-out regret", Unit.REGRET, regrets, note=regret_note),
    ]


def _ladder(ladder: LadderReport, decision: Decision) -> list[CardPart]:
    """Return a chart of the ladder's rungs and the policies rated on it, from the highest down."""
    bars = [Interval(each.name, Estimate(value=each.rating, low=each.low, high=each.high), "rung") for each in ladder.rungs]
    bars += [
        Interval(who, Estimate(value=place.rating, low=place.low_of_all, high=place.high_of_all), "policy, best moves")
        for who, place in decision.placed.items()
    ]
    bars.sort(key=lambda interval: -interval.estimate.value)
    return interval_parts("Ladder: Elo above a random mover", Unit.ELO, bars, note=ladder.note)
