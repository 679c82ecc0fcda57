"""The pages and texts of a run's results, as templates of the one document (`*.j2` beside this module), and the tables in them.

Names of files and of engines, settings and messages are untrusted: what a template puts in is escaped, so that it is shown and not obeyed.
"""

import html
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpo.board.phases import PHASES
from grpo.match.intervals import LEVEL, Estimate, Unit, elo_estimate
from grpo.match.matches import UNDECIDED, End
from grpo.match.verdict import AGAINST_OTHERS, Claim, LadderFinding
from grpo.settings.language import SMALL
from grpo.settings.metrics import ENDS, TASKS
from grpo.settings.names import MAIN, flattened
from grpo.settings.tree import Settings
from steps import STEPS
from steps.pages.picture import gain_bars, ladder_bars
from steps.pages.results import Boards, Decision, Measurement, Placement, Results, Training
from steps.run.aliases import CHAMPION, PEAK, PRETRAINED_STEP

_WIDTH: Final = 80
"""Of the terminal's verdict."""
# Markdown's special characters: brackets only where they would end a link's text, underscores only outside of words.
_MARKUP: Final = re.compile(r"[\\`*{}|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")
HeadedRows = tuple[tuple[str, ...], Sequence[Sequence[str | int]]]
"""Headers and rows."""


class Markdown(str):
    """A text that a template puts in as it is."""

    __slots__ = ()


def report_page(results: Results) -> str:
    """Return `report.md`."""
    return _rendered("report.md.j2", results=results)


def description(results: Results) -> str:
    """Return the beginning of a run's description in MLflow: verdict, measurements, diagnosis."""
    return _rendered("description.md.j2", results=results)


def version_note(results: Results, role: str) -> str:
    """Return the description of a registered version, `champion` or `peak`: what games have shown of this policy, and no more."""
    step = results.decision.champion_step if role == CHAMPION else results.decision.peak_step
    return _rendered("version.md.j2", results=results, step=step, role=role)


def model_note(model: str) -> str:
    """Return the description of a registered model of this name."""
    return _rendered("model.md.j2", model=model)


def model_card(
    results: Results | None, *, run: str, policy_step: int | None, described: Mapping[str, Any], hashes: Mapping[str, str]
) -> str:
    """Return a policy's card.

    Args:
        results: of the run that made it; None where unknown.
        run: that run, or the name of the policy's folder.
        policy_step: its training step; None when unknown.
        described: its `facts.json`.
        hashes: name -> SHA-256.
    """
    return _rendered("model_card.md.j2", results=results, run=run, policy_step=policy_step, described=described, hashes=hashes)


def training_lines(results: Results) -> list[str]:
    """Return how pretraining and GRPO went, and which checkpoints came out; escaped for Markdown and HTML."""
    return _rendered("training.j2", results=results).splitlines()


def verdict_lines(results: Results) -> list[str]:
    """Return the verdict for a terminal, in lines of at most 80 characters. No line begins with a space: Metaflow strips those."""
    decision, games, picture = results.decision, results.decision.confirmation_best_moves, verdict_picture(results.decision)
    by = "no game was played" if games is None else f"the first row decides, by {games.num_pairs:,} pairs of fresh games as played"
    others = "; the ladder by others, with its opponents' ratings taken as exact" if picture else ""
    notes = [f"95 % intervals: {by}{others}. The outcome: {outcome(decision)}.", origin_text(results)]
    head, *below = (_wrapped(text) for text in (f"Verdict: {decision.verdict}. {decision.sentence}", *notes))
    return [*head, "", *picture, *([""] if picture else []), *(line for lines in below for line in lines)]


def verdict_picture(decision: Decision) -> list[str]:
    """Return the gains as a picture, then start and candidate on the ladder; no line where nothing was played."""
    return [*gain_bars(gains(decision)), *ladder_bars({who: place.estimate for who, place in placed_together(decision).items()})]


def gains(decision: Decision) -> dict[str, Estimate]:
    """Return the candidate's gain in Elo against its own start and against other opponents, by label; the first one decides."""
    games, ladder, found = decision.confirmation_best_moves, decision.ladder_gain, dict[str, Estimate]()
    if games is not None:
        found["own start, as played: decides"] = elo_estimate(games.interval.estimate)
        if games.adjudicated is not None:
            found["own start, adjudicated"] = elo_estimate(games.adjudicated.estimate)
    if ladder is not None:
        found |= {"other opponents, as played": ladder.played, "other opponents, adjudicated": ladder.adjudicated}
    return found


def placed_together(decision: Decision) -> dict[str, Placement]:
    """Return the name of the start and of the candidate -> its place on the ladder, by the same rungs and openings."""
    if decision.ladder is None or decision.ladder_initial is None:
        return {}
    return {"pretrained": decision.ladder_initial, f"step {decision.candidate_step:,}": decision.ladder}


def outcome(decision: Decision) -> str:
    """Return who is champion."""
    if not decision.promoted:
        return "the pretrained policy stays"
    step = f"step {decision.candidate_step:,}"
    if decision.replaces_previous:
        return f"{step} is champion"
    return f"{step} is this run's champion; the registry's champion stays, for {step} was not shown to be better than it"


def origin_text(results: Results) -> str:
    """Return what the run was resumed from, and what its verdict is against then; empty for a new training."""
    if (origin := results.origin) is None:
        return ""
    start = f"step {PRETRAINED_STEP} of that run, its pretrained policy"
    return f"Resumed from step {origin.step:,} of run {origin.run}: the verdict is against {start}, not against step {origin.step:,}."


def training_end(training: Training) -> str:
    """Return from which step to which GRPO trained, and why it stopped."""
    message = f" ({training.message})" if training.message else ""
    why = ENDS.get(training.reason, training.reason)
    return f"GRPO trained from step {training.first_step:,} to {training.last_step:,} and stopped because {why}{message}."


def finding_lines(findings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the findings of the diagnosis.

    >>> finding_lines([{"name": "kl_trap", "severity": "critical", "evidence": ["1", "2"], "means": "Bad.", "advice": "Do.", "page": "p"}])
    ['critical: kl_trap: 1; 2. Bad. Advice: Do. (p)']
    """
    return [
        f"{each['severity']}: {each['name']}: {'; '.join(each['evidence'])}. {each['means']} Advice: {each['advice']} ({each['page']})"
        for each in findings
    ]


def measurement_table(found: Iterable[Measurement]) -> HeadedRows:
    """Return what was measured, games as played in one column and adjudicated in another; the row that decides is marked."""
    rows = [
        (
            f"{each.name}{': decides' if each.decides else ''}",
            estimate_text(each.estimate, each.unit),
            "" if each.num_games is None else each.num_games,
            "" if each.adjudicated is None else estimate_text(each.adjudicated, each.unit),
        )
        for each in found
    ]
    return ("measured", "95 % interval, games as played", "games", "the same games adjudicated: decides nothing"), rows


def decision_table(decision: Decision) -> HeadedRows:
    """Return what was done or asked in the decision, and what came out."""
    rows = [
        (f"halving, round {each.round + 1}: step {each.candidate:,}", f"{each.so_far}; {'stays' if each.kept else 'leaves'}")
        for each in decision.screening
    ]
    heads = ("decides", "decides on the registry's champion")
    rows += [(f"{head}: {claim.name}", f"{_claim(claim)} (threshold {LEVEL})") for head, claim in zip(heads, decision.claims, strict=False)]
    if (gain := decision.ladder_gain) is not None:
        rows.append((f"may block: {AGAINST_OTHERS}", f"{gain}{'; BLOCKS' if gain.finding == LadderFinding.WORSE else ''}"))
    for each in decision.phases:
        text = f"{each.change.text(Unit.REGRET, is_change=True)}, {each.num_boards:,} boards{'; BLOCKS' if each.blocks else ''}"
        rows.append((f"may block: held-out regret, {each.phase}, less the pretrained policy's", text))
    return ("step of the decision", "found"), [*rows, *((f"decides nothing: {claim.name}", _claim(claim)) for claim in decision.beside)]


def ladder_table(results: Results) -> HeadedRows:
    """Return the ladder from its highest rung down, with both policies where they stand."""
    placed = placed_together(results.decision)
    rows = []
    for each in results.ladder.rungs:
        met = [f"{who} {part.score:.3f}" for who, place in placed.items() for part in place.games if part.rung == each.name]
        gap = "" if each.gap is None else _elo(each.gap, each.gap_low, each.gap_high)
        rows.append((each.rating, each.name, _elo(each.rating, each.low, each.high), gap, ", ".join(met)))
    rows += [(each.rating, who, _elo(each.rating, each.low_of_all, each.high_of_all), "", "") for who, each in placed.items()]
    return ("player", "Elo", "above the next lower rung", "scores against it"), [row[1:] for row in sorted(rows, key=lambda row: -row[0])]


def regret_table(results: Results) -> HeadedRows:
    """Return held-out regret before and after GRPO."""
    rows = [(phase.value, *results.regret[phase]) for phase in PHASES if phase in results.regret]
    return ("phase", "pretrained", "candidate"), [
        (phase, f"{before:.4f}", "" if after is None else f"{after:.4f}") for phase, before, after in rows
    ]


def phase_table(boards: Boards) -> HeadedRows:
    """Return the positions met in the source and the boards kept."""
    rows = [(phase.value, boards.natural_phases[phase], boards.phases[phase]) for phase in PHASES]
    return ("phase", "found in the source", "selected"), rows


def setting_table(results: Results) -> HeadedRows:
    """Return the main settings, and all that differ from the defaults of this code."""
    given = results.settings
    defaults = flattened(Settings.model_validate({"policy": {"kind": results.kind}}).model_dump(mode="json"))
    shown = [name for name in sorted(given) if name in MAIN or (name in defaults and given[name] != defaults[name])]
    return ("setting", "value", "default"), [(name, str(given[name]), str(defaults.get(name, "-"))) for name in shown]


def estimate_text(estimate: Estimate, unit: Unit) -> str:
    """Return an estimate with its interval; a score is stated in Elo too."""
    text = estimate.text(unit, suffix=" Elo" if unit == Unit.ELO else "")
    return text if unit != Unit.SCORE else f"{text} = {elo_estimate(estimate).text(Unit.ELO, suffix=' Elo')}"


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[str | int]]) -> Markdown:
    """Return a table of escaped cells; whole numbers have commas."""
    lines = [headers, ["---"] * len(headers), *([_shown(cell) for cell in row] for row in rows)]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _shown(value: Any) -> Markdown:
    """Escape what a template puts in for Markdown and HTML, on one line."""
    assert value is not None, "a template puts in what was not measured"
    if isinstance(value, Markdown):
        return value
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return Markdown(_MARKUP.sub(lambda found: f"&#{ord(found[0])};", html.escape(" ".join(text.split()))))


@cache
def _environment() -> Environment:
    # Everything that a template puts in is escaped for Markdown, which is more than autoescape does.
    found = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    tables = (decision_table, ladder_table, measurement_table, phase_table, regret_table, setting_table)
    found.globals |= {
        each.__name__: each
        for each in (*tables, estimate_text, finding_lines, origin_text, outcome, training_end, training_lines, verdict_picture)
    }
    found.globals |= {"CHAMPION": CHAMPION, "PEAK": PEAK, "START": PRETRAINED_STEP, "SMALL": SMALL}
    found.globals |= {"TASKS": TASKS, "UNDECIDED": UNDECIDED, "End": End, "STEPS": STEPS}
    found.filters |= {"table": lambda rows: markdown_table(*rows), "plain": Markdown}
    return found


def _rendered(template: str, **facts: Any) -> str:
    return _environment().get_template(template).render(**facts)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _claim(claim: Claim) -> str:
    # A claim that is alone in its family has one p-value. In a family the interval is that of the claim alone, so it can clear one half
    # where the adjusted value does not pass.
    alone, adjusted = (f"p = {value:.4f}" if value >= 0.0001 else "p < 0.0001" for value in (claim.p_value, claim.adjusted_p))
    p_values = alone if alone == adjusted else f"{adjusted} after Holm (alone {alone})"
    return f"{claim.interval}; {'shown' if claim.is_shown else 'not shown'}, {p_values}"


def _elo(value: float, low: float | None, high: float | None) -> str:
    assert low is not None
    assert high is not None
    return "0" if value == low == high == 0 else Estimate(value=value, low=low, high=high).text(Unit.ELO)
