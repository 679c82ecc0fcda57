"""What the pages of a run's results share: rows of tables, sentences, and Markdown that shows untrusted text and does not obey it."""

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from grpo.board.phases import PHASES
from grpo.diagnosis.findings import Severity
from grpo.evaluation.verdict import AGAINST_OTHERS, LadderFinding
from grpo.metrics.table import ENDS, TASKS
from grpo.policy.files import LANGUAGE
from grpo.statistics.intervals import LEVEL, Estimate, Unit, elo_estimate
from steps.step_io.results import (
    CANDIDATE_RATING,
    GAIN,
    LADDER_GAIN,
    MEASURE_NAMES,
    REGRET_CANDIDATE,
    REGRET_PRETRAINED,
    SAMPLED,
    START_RATING,
    BoardFacts,
    ClaimFacts,
    DecisionFacts,
    IntervalFacts,
    MatchFacts,
    Measurement,
    PlacementFacts,
    Results,
    TrainingFacts,
    estimate_of,
)

# Markdown's special characters: brackets only where they would end a link's text, underscores only outside of words.
_MARKUP: Final = re.compile(r"[\\`*{}|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")

HeadedRows = tuple[tuple[str, ...], Sequence[Sequence[str | int]]]
"""Headers and rows."""


def escaped(value: Any) -> str:
    """Escape an untrusted text for Markdown and HTML, on one line."""
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", html.escape(" ".join(str(value).split())))


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str | int]]) -> str:
    """Return a table of escaped cells; whole numbers have commas."""
    lines = [headers, ["---"] * len(headers), *([escaped(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_list(lines: Iterable[str]) -> str:
    """Return a list of escaped items."""
    return "\n".join(f"- {escaped(line)}" for line in lines)


def interval_text(found: IntervalFacts, unit: str, *, is_change: bool = False) -> str:
    """Return an estimate of the document with its interval."""
    return estimate_of(found).text(Unit(unit), is_change=is_change)


def measurement_text(found: Measurement) -> str:
    """Return the same with "Elo" where it is Elo; a score is stated in Elo too."""
    estimate = estimate_of(found)
    if found["unit"] == Unit.ELO:
        return estimate.text(Unit.ELO, suffix=" Elo")
    text = estimate.text(Unit(found["unit"]))
    return text if found["unit"] != Unit.SCORE else f"{text} = {elo_estimate(estimate).text(Unit.ELO, suffix=' Elo')}"


def measurement_table(found: Iterable[Measurement]) -> HeadedRows:
    """Return what was measured."""
    rows = [(_at_depth(each), measurement_text(each), "" if each["num_games"] is None else f"{each['num_games']:,}") for each in found]
    return ("measured", "estimate, 95 % interval", "games"), rows


_HEADLINES: Final = (
    MEASURE_NAMES[GAIN],
    MEASURE_NAMES[SAMPLED],
    MEASURE_NAMES[LADDER_GAIN],
    MEASURE_NAMES[START_RATING],
    MEASURE_NAMES[CANDIDATE_RATING],
    REGRET_PRETRAINED,
    REGRET_CANDIDATE,
)


def headline_table(found: Sequence[Measurement]) -> HeadedRows:
    """Return the measurements that say most: the gains, both ratings of the ladder gain, and held-out regret before and after GRPO."""
    named = {each["name"]: each for each in found}
    return measurement_table(named[name] for name in _HEADLINES if name in named)


def _at_depth(found: Measurement) -> str:
    depth = found["yardstick"].get("evaluation.adjudication_depth")
    return found["name"] if depth is None else f"{found['name']} at depth {depth}"


def outcome(decision: DecisionFacts) -> str:
    """Return who is champion."""
    if not decision["promoted"]:
        return "the pretrained policy stays"
    step = f"step {decision['candidate_step']:,}"
    if decision["replaces_previous"]:
        return f"{step} is champion"
    return f"{step} is this run's champion; the registry's champion stays, for {step} was not shown to be better than it"


def trace_table(decision: DecisionFacts) -> HeadedRows:
    """Return what was done or asked in the decision, and what came out."""
    rows = [
        (f"halving, round {entry['round'] + 1}: step {entry['candidate']:,}", f"{entry['text']}; {'stays' if entry['kept'] else 'leaves'}")
        for entry in decision["screening"]
    ]
    rows += [(f"claim: {claim['name']}", f"{_found(claim)} (threshold {LEVEL}, after Holm)") for claim in decision["claims"]]
    gain = decision["ladder_gain"]
    rows.append((f"claim: {AGAINST_OTHERS}", gain["text"] + ("; BLOCKS" if gain["finding"] == LadderFinding.WORSE else "")))
    rows += [(f"beside, decides nothing: {claim['name']}", _found(claim)) for claim in decision["beside"]]
    for change in decision["phases"]:
        text = f"{interval_text(change['change'], Unit.REGRET, is_change=True)}, {change['num_boards']} boards"
        rows.append((f"held-out regret, {change['phase']}, less the pretrained policy's", text + ("; BLOCKS" if change["blocks"] else "")))
    return ("step of the decision", "found"), rows


def placed_together(decision: DecisionFacts) -> dict[str, PlacementFacts]:
    """Return the name of the start and of the candidate -> its place on the ladder, by the same rungs and openings."""
    return {"pretrained": decision["ladder_initial"], f"step {decision['candidate_step']:,}": decision["ladder"]}


def ladder_table(results: Results) -> HeadedRows:
    """Return the ladder from its highest rung down, with both policies where they stand."""
    placed = placed_together(results["decision"])
    against: dict[str, list[str]] = {}
    for who, place in placed.items():
        for part in place["games"]:
            against.setdefault(part["rung"], []).append(f"{who} {part['score']:.3f}")
    rows = [
        (
            rung["rating"],
            rung["name"],
            _elo(rung["rating"], rung["low"], rung["high"]),
            _elo(rung["gap"], rung["gap_low"], rung["gap_high"]) if "gap" in rung else "",
            ", ".join(against.get(rung["name"], [])),
        )
        for rung in results["ladder"]["rungs"]
    ]
    rows += [(each["rating"], who, _elo(each["rating"], each["low_of_all"], each["high_of_all"]), "", "") for who, each in placed.items()]
    headers = ("player", "Elo", "above the next lower rung", "scores against it")
    return headers, [row[1:] for row in sorted(rows, key=lambda row: -row[0])]


def regret_table(results: Results) -> HeadedRows:
    """Return held-out regret before and after GRPO."""
    found = [(phase.value, results["regret"][phase]) for phase in PHASES if phase in results["regret"]]
    rows = [(phase, *("" if each is None else f"{each:.4f}" for each in (of["before"], of["after"]))) for phase, of in found]
    return ("phase", "pretrained", "candidate"), rows


_BARS_HEAD: Final = "gain in Elo, against"
_LADDER_HEAD: Final = "Elo above a random mover"
_LABEL_WIDTH: Final = 28
_BAR_HALF: Final = 12
"""Characters of a text bar on each side of its middle."""
_BAR_WIDTH: Final = 2 * _BAR_HALF + 1


def verdict_estimates(decision: DecisionFacts) -> dict[str, Estimate]:
    """Return the candidate's gain in Elo against its own start and against other opponents, by label, in the verdict's order."""
    games, ladder = decision["confirmation_best_moves"], decision["ladder_gain"]
    adjudicated = {"own start, adjudicated": games["adjudicated"]} if "adjudicated" in games else {}
    gains = {"other opponents, as played": ladder["played"], "other opponents, adjudicated": ladder["adjudicated"]}
    scores = {
        label: elo_estimate(Estimate(value=score["score"], low=score["low"], high=score["high"]))
        for label, score in ({"own start, as played": games} | adjudicated).items()
    }
    return scores | {label: estimate_of(gain) for label, gain in gains.items()}


def verdict_picture(decision: DecisionFacts) -> list[str]:
    """Return the verdict as a picture in lines of at most 80 characters: the gains, then start and candidate on the ladder."""
    places = {
        who: Estimate(value=place["rating"], low=place["low"], high=place["high"]) for who, place in placed_together(decision).items()
    }
    return [*interval_bars(verdict_estimates(decision)), *ladder_bars(places)]


def interval_bars(estimates: Mapping[str, Estimate]) -> list[str]:
    r"""Return a picture of Elo gains in lines of at most 80 characters: a scale, then a bar for each. No line begins with a space.

    >>> print("\n".join(interval_bars({"own start": Estimate(value=53, low=31, high=75)})))
    gain in Elo, against         -75         0         +75
    own start                                |    [--o---] +53 [+31, +75]
    """
    widest = max((max(abs(each.low), abs(each.high)) for each in estimates.values()), default=0.0)
    limit = _scale(widest)
    return [_picture_line(_BARS_HEAD, f"{f'-{limit:,}':<{_BAR_HALF}}0{f'+{limit:,}':>{_BAR_HALF}}"), *_bars(estimates, -limit, limit)]


def ladder_bars(places: Mapping[str, Estimate]) -> list[str]:
    r"""Return the same of places on the ladder, in Elo above a random mover, between the hundreds around them.

    >>> print("\n".join(ladder_bars({"pretrained": Estimate(value=1_230, low=1_151, high=1_310)})))
    Elo above a random mover     1,100               1,400
    pretrained                       [-----o------]        +1,230 [+1,151, +1,310]
    """
    left = 100 * math.floor(min((each.low for each in places.values()), default=0.0) / 100)
    right = max(left + 100, 100 * math.ceil(max((each.high for each in places.values()), default=0.0) / 100))
    return [_picture_line(_LADDER_HEAD, f"{left:<{_BAR_HALF},}{right:>{_BAR_HALF + 1},}"), *_bars(places, left, right)]


def _scale(widest: float) -> int:
    return next(scale for scale in _SCALES if scale >= min(widest, _SCALES[-1]))


def _bars(estimates: Mapping[str, Estimate], left: int, right: int) -> Iterator[str]:
    """Draw intervals between two Elo values, with a mark at 0 where it lies between them."""

    def place(elo: float) -> int:
        return round((max(left, min(right, elo)) - left) / (right - left) * (_BAR_WIDTH - 1))

    for label, each in estimates.items():
        low, value, high = place(each.low), place(each.value), place(each.high)
        bar = ["-" if low < at < high else " " for at in range(_BAR_WIDTH)]
        if left < 0 < right:
            bar[place(0)] = "|"
        bar[low], bar[high], bar[value] = "[", "]", "o"
        yield _picture_line(label, f"{''.join(bar)} {each.text(Unit.ELO)}")


def _picture_line(label: str, rest: str) -> str:
    return f"{label:<{_LABEL_WIDTH}} {rest}"


_SCALES: Final = (50, 75, 100, 150, 200, 300, 400, 600, 800, 1_200, 1_600)

PHASE_HEADERS: Final = ("phase", "found in the source", "selected")


def phase_rows(boards: BoardFacts) -> list[tuple[str, int, int]]:
    """Return the positions met in the source and the boards kept."""
    return [(phase.value, int(boards["natural_phases"][phase]), int(boards["phases"][phase])) for phase in PHASES]


def training_lines(results: Results) -> list[str]:
    """Return how pretraining and GRPO went, and which checkpoints came out."""
    is_language, training, decision = results["kind"] == LANGUAGE, results["training"], results["decision"]
    entropy = training["mean_entropy_at_end"]
    nats = "not known" if entropy is None else f"{entropy:.2f} nats{' an answer' if is_language else ''}"
    champion = "the pretrained policy" if decision["champion_step"] == 0 else f"step {decision['champion_step']:,}"
    return [
        *(_cloning if is_language else _imitation)(results["pretraining"]),
        f"{training_end(training)} Entropy at T = 1 was {nats} then (mean of the last steps).",
        _control(training["control"], is_language=is_language),
        f"Champion: {champion}. Peak, to resume from: step {decision['peak_step']:,}, whose score against the pretrained policy has the"
        f" lower bound {decision['peak_low']:.3f}.",
    ]


def training_end(training: TrainingFacts) -> str:
    """Return from which step to which GRPO trained, and why it stopped."""
    message = f" ({training['message']})" if training["message"] else ""
    why = ENDS.get(training["reason"], training["reason"])
    return f"GRPO trained from step {training['first_step']:,} to {training['last_step']:,} and stopped because {why}{message}."


def _imitation(found: Mapping[str, Any]) -> Iterator[str]:
    ended = "the validation loss had stopped falling" if found["has_converged"] else "max_steps was reached: NOT converged"
    # The last line of the log, and MLflow's last value, are of a later step.
    yield (
        f"Imitation took {found['num_steps']:,} steps and ended because {ended}. Kept is step {found['best_step']:,}, which has the lowest"
        f" validation loss: {found['validation_loss']:.3f} nats,"
        f" top-1 {found['top1']:.3f}, top-5 {found['top5']:.3f}, entropy {found['entropy']:.2f} nats."
    )


def _cloning(found: Mapping[str, Any]) -> Iterator[str]:
    commit = f" at commit {found['commit'][:12]}" if found["commit"] else ""
    loss = f", validation loss {found['clone_validation_loss']:.3f} nats a token" if found["num_steps"] else ""
    rates = ", ".join(
        f"{words} task {Estimate(value=rate['rate'], low=rate['low'], high=rate['high']).text(Unit.SCORE)}"
        for task, words in TASKS.items()
        if (rate := found["parse_rates"].get(task))
    )
    yield f"Language model {found['model']}{commit}: {found['num_parameters']:,} parameters, {found['num_tokens']:,} tokens."
    yield f"Cloning took {found['num_steps']:,} steps{loss}. Answers drawn at T = 1 that could be read: {rates}."


def _control(found: Mapping[str, float], *, is_language: bool) -> str:
    recoveries = f"recoveries from critical entropy: {found['control/recoveries']:.0f}."
    if is_language:  # No controller moves its coefficients.
        return recoveries.capitalize()
    return f"The entropy controller stood at a bound in {found['control/entropy_saturated']:.0%} of the steps; {recoveries}"


def finding_lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the findings of the diagnosis; a note has nothing to mend.

    >>> about = {"name": "healthy", "evidence": ["60 rows"], "cause": "No check fails.", "remedy": "Games decide.", "page": "p"}
    >>> finding_lines([about | {"severity": "note"}, about | {"severity": "warning"}])
    ['note: healthy: 60 rows. No check fails. Games decide. (p)', 'warning: healthy: 60 rows. No check fails. Remedy: Games decide. (p)']
    """
    return [
        f"{each['severity']}: {each['name']}: {'; '.join(each['evidence'])}. {each['cause']}"
        f"{'' if each['severity'] == Severity.NOTE else ' Remedy:'} {each['remedy']} ({each['page']})"
        for each in findings
    ]


def _picture(decision: DecisionFacts) -> str:
    # Its labels are ours and a number, so that nothing untrusted can close the block.
    return "\n".join(["```text", *verdict_picture(decision), "```"])


def summary(results: Results) -> str:
    """Return the verdict, its picture, and all that was measured, as Markdown."""
    decision = results["decision"]
    confirmed = decision["confirmation_best_moves"]
    ends = ", ".join(f"{count:,} {end}" for end, count in confirmed["ends"].items() if count)
    depth = f" of depth {confirmed['adjudicated']['depth']}" if "adjudicated" in confirmed else ""
    return f"""\
{escaped(results["verdict"])}

{_picture(decision)}

{markdown_table(*measurement_table(results["measurements"]))}

Intervals are of 95 %, by pairs of games; a win is 1, a draw 0.5. Candidate: step {decision["candidate_step"]:,}. Its own start
is the pretrained policy, step 0. The confirmation games were played once, after it was chosen, from {confirmed["num_openings"]:,}
openings that were not used before, each with both colors: the number of openings is the sample size of players who always play the same.
They ended by: {escaped(ends)}. For the claims they count as
played. Adjudicated: games drawn by repetition, fifty moves or the ply cap go to the side that a search{depth}
finds better. Regret: win probability lost per move on held-out boards, by a search deeper than the reward's. Ratings are above a random
mover, on the run's own ladder.
{_answers(confirmed)}"""


def report_markdown(results: Results) -> str:
    """Return the report as Markdown."""
    decision, ladder = results["decision"], results["ladder"]
    placed = f"pretrained {decision['ladder_initial']['text']}; step {decision['candidate_step']:,} {decision['ladder']['text']}"
    outputs = [(step, each["version"], each["output_hash"]) for step, each in results["outputs"].items()]
    return f"""\
# Verdict: {decision["verdict"]}

{summary(results)}
## Decision: {outcome(decision)}

{markdown_table(*trace_table(decision))}

## How it got there

{markdown_list(training_lines(results))}

## Ladder

{escaped(ladder["note"])} Engine: {escaped(ladder["engine"])}.

{markdown_table(*ladder_table(results))}

Best moves, the rungs' ratings taken as exact, both on the same openings: {escaped(placed)}.

## Held-out regret of best moves by phase

{markdown_table(*regret_table(results))}

## Boards

{markdown_table(PHASE_HEADERS, phase_rows(results["boards"]))}
## Outputs

{markdown_list(f"{name}: {place}" for name, place in results["places"].items())}

{markdown_table(("step", "version", "output hash"), outputs)}
"""


def _answers(confirmed: MatchFacts) -> str:
    """Return counts of the candidate's answers in the confirmation games; empty if it is not a language model."""
    found = confirmed.get("answers", {}).get("first")
    if found is None:
        return ""
    counts = {name: f"{int(count):,}" for name, count in found.items()}
    return (
        f"\nIn the confirmation games with best moves the candidate gave {counts['answers']} answers for {counts['moves']} moves:"
        f" {counts['unreadable']} unreadable, {counts['illegal']} illegal; it was asked again {counts['asked_again']} times, and forfeited"
        f" {counts['forfeits']} games.\n"
    )


def _found(claim: ClaimFacts) -> str:
    # A claim that is alone in its family has one p-value. In a family the interval is that of the claim alone, so it can clear one half
    # where the adjusted value does not pass.
    alone, adjusted = p_text(claim["p_value"]), p_text(claim["adjusted_p"])
    p_values = alone if alone == adjusted else f"{adjusted} after Holm (alone {alone})"
    return f"{claim['text']}; {'shown' if claim['is_shown'] else 'not shown'}, {p_values}"


def p_text(p_value: float) -> str:
    """Return a p-value as people read it: one that rounds to 0 is not 0.

    >>> p_text(0.00004)
    'p < 0.0001'
    """
    return "p < 0.0001" if p_value < 0.0001 else f"p = {p_value:.4f}"


def _elo(value: float, low: float, high: float) -> str:
    return "0" if value == low == high == 0 else Estimate(value=value, low=low, high=high).text(Unit.ELO)
