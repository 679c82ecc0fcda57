"""Pages and texts of a run's results, rendered from `*.md.j2` beside this module, and the verdict for a terminal."""

import html
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grpo.board.phases import PHASES
from grpo.diagnosis.findings import Finding
from grpo.match.matches import UNDECIDED, End
from grpo.match.selection import Selection
from grpo.metrics.shared import MOVE_QUALITY, PRETRAINED_STEP
from grpo.metrics.table import TASKS
from grpo.settings.language import SMALL
from grpo.settings.names import MAIN, flattened
from grpo.settings.tree import Settings
from grpo.statistics.intervals import LEVEL, Estimate, Unit, elo_estimate
from grpo.statistics.verdict import AGAINST_OTHERS, LadderFinding
from steps import STEPS
from steps.names import CHAMPION, PEAK
from steps.pages.results import Results

_WIDTH: Final = 80  # Characters in a line of the verdict.
_LABEL_WIDTH: Final = 29
_BAR_HALF: Final = 12  # Characters on each side of a bar's middle.
_BAR_WIDTH: Final = 2 * _BAR_HALF + 1
_HOW_TO_READ: Final = (
    "Brackets are 95 % intervals. The first row decides, by {num_pairs:,} pairs of new games. Ratings include the ladder's errors, which"
    " nearly cancel in gains."
)
_QUALITY: Final = dict(
    zip(MOVE_QUALITY, (("ACPL", "{:.0f}"), ("accuracy", "{:.1f}%"), ("blunders", "{:.1%}")), strict=True)
)  # Label, format.
_SCALES: Final = (50, 75, 100, 150, 200, 300, 400, 600, 800, 1_200, 1_600)  # The picture goes from -scale to +scale Elo.
# Markdown's special characters: `]` only where a link's text could end, `_` except between two letters or digits.
_MARKUP: Final = re.compile(r"[\\`*{}|~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])")


def environment(folder: Path, escaped: Callable[[str], str]) -> Environment:
    """Return a folder's templates. Inserted (untrusted) values are escaped for HTML and then by `escaped`, except values of class `Markup`.

    White space is collapsed, integers get thousands separators, and None is an AssertionError.
    """

    def shown(value: Any) -> Markup:
        if isinstance(value, Markup):
            return value
        assert value is not None, "a template inserts a value that was not measured"
        text = f"{value:,}" if isinstance(value, int) else str(value)
        return Markup(escaped(html.escape(" ".join(text.split()))))  # noqa: S704

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def page(template: str, **facts: Any) -> str:
    """Render `{template}.md.j2`."""
    return _environment().get_template(f"{template}.md.j2").render(**facts)


def verdict_lines(results: Results) -> list[str]:
    """Return the verdict for a terminal: wrapped text and a picture. Metaflow strips leading spaces, so no line begins with a space."""
    decision, games, picture = results.decision, results.decision.confirmation_best_moves, verdict_picture(results.decision)
    how_to_read = "" if games is None else _HOW_TO_READ.format(num_pairs=games.score.num_pairs)
    head = f"Verdict: {decision.verdict}. {decision.sentence} So {decision.outcome}. {results.strength}"
    texts = (head, how_to_read, str(results.origin or ""))
    verdict, note, origin = (textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False) for text in texts)
    return [*verdict, "", *picture, *([""] if picture else []), *note, *origin]


def verdict_picture(decision: Selection) -> list[str]:
    r"""Return gains and ladder ratings as a text picture, or [] if no games were played.

    gain in Elo, against          -75         0         +75
    own start                                 |    [--o---] +53 [+31, +75]
    """
    lines, gains, ratings = list[str](), decision.gains, {name: placed.rating_of_all for name, placed in decision.placed.items()}
    if gains:
        widest = max(max(abs(gain.low), abs(gain.high)) for gain in gains.values())
        limit = next(scale for scale in _SCALES if scale >= min(widest, _SCALES[-1]))
        lines.append(f"{'gain in Elo, against':<{_LABEL_WIDTH}} {f'-{limit:,}':<{_BAR_HALF}}0{f'+{limit:,}':>{_BAR_HALF}}")
        lines += _bars(gains, -limit, limit)
    if ratings:
        left = 100 * math.floor(min(rating.low for rating in ratings.values()) / 100)
        right = max(left + 100, 100 * math.ceil(max(rating.high for rating in ratings.values()) / 100))
        lines.append(f"{'Elo above a random mover':<{_LABEL_WIDTH}} {left:<{_BAR_HALF},}{right:>{_BAR_HALF + 1},}")
        lines += _bars(ratings, left, right)
    return lines


def _bars(estimates: Mapping[str, Estimate], left: int, right: int) -> Iterator[str]:
    def column(elo: float) -> int:
        return round((max(left, min(right, elo)) - left) / (right - left) * (_BAR_WIDTH - 1))

    for label, estimate in estimates.items():
        low, value, high = map(column, (estimate.low, estimate.value, estimate.high))
        bar = ["-" if low < index < high else " " for index in range(_BAR_WIDTH)]
        if left < 0 < right:
            bar[column(0)] = "|"
        bar[low], bar[high], bar[value] = "[", "]", "o"
        yield f"{label:<{_LABEL_WIDTH}} {''.join(bar)} {estimate.text(Unit.ELO)}"


def finding_lines(findings: Iterable[Finding], *, is_short: bool = False) -> list[str]:
    """Return a line per finding: severity, name, evidence. Unless `is_short`, its cause (a finding) follows, or else meaning and advice.

    >>> seen = {"severity": "critical", "evidence": ("1", "2"), "first_step": 1, "last_step": 2}
    >>> found = Finding(name="kl_trap", means="Bad.", advice="Do.", **seen)
    >>> finding_lines([found])
    ['critical: kl_trap: 1; 2. Bad. Advice: Do. (docs/troubleshooting.md#kl_trap)']
    >>> finding_lines([found], is_short=True)
    ['critical: kl_trap: 1; 2']
    """
    lines = []
    for finding in findings:
        head = f"{finding.severity}: {finding.name}: {'; '.join(finding.evidence)}"
        advice = f"It may follow from {finding.cause}" if finding.cause else f"{finding.means} Advice: {finding.advice}"
        lines.append(head if is_short else f"{head}. {advice} ({finding.page})")
    return lines


def _estimate_text(estimate: Estimate, unit: Unit) -> str:
    text = estimate.text(unit, suffix=" Elo" if unit == Unit.ELO else "")
    return text if unit != Unit.SCORE else f"{text} = {elo_estimate(estimate).text(Unit.ELO, suffix=' Elo')}"


def _elo(estimate: Estimate) -> str:
    return "0" if estimate.value == estimate.low == estimate.high == 0 else estimate.text(Unit.ELO)


def _ladder_rows(results: Results) -> list[tuple[str, ...]]:
    """Return rungs (rated opponents) and policies, strongest first: name, Elo, Elo above the next rung, scores against the rung."""
    placed = results.decision.placed
    rows: list[tuple[float, tuple[str, ...]]] = []
    for rung in results.ladder.rungs:
        games = [(name, part) for name, player in placed.items() for part in player.games if part.rung == rung.name]
        scores = ", ".join(f"{name} {part.match.score.value:.3f}" for name, part in games)
        row = (rung.name, _elo(rung.rating), "" if rung.gap is None else _elo(rung.gap), scores)
        rows.append((rung.rating.value, row))
    rows += [(player.rating.value, (name, _elo(player.rating_of_all), "", "")) for name, player in placed.items()]
    return [row for _, row in sorted(rows, key=lambda row: -row[0])]


def _main_settings(results: Results) -> list[tuple[str, str, str]]:
    values = results.settings
    defaults = flattened(Settings.model_validate({"policy": {"kind": results.kind}}).model_dump(mode="json"))
    names = [name for name in sorted(values) if name in MAIN or (name in defaults and values[name] != defaults[name])]
    return [(name, str(values[name]), str(defaults.get(name, "-"))) for name in names]


@cache
def _environment() -> Environment:
    templates = environment(Path(__file__).parent, lambda text: _MARKUP.sub(lambda match: f"&#{ord(match[0])};", text))
    templates.globals |= {"CHAMPION": CHAMPION, "PEAK": PEAK, "START": PRETRAINED_STEP, "SMALL": SMALL, "STEPS": STEPS, "PHASES": PHASES}
    templates.globals |= {"TASKS": TASKS, "UNDECIDED": UNDECIDED, "End": End, "LEVEL": LEVEL, "AGAINST_OTHERS": AGAINST_OTHERS}
    templates.globals |= {"WORSE": LadderFinding.WORSE, "REGRET": Unit.REGRET, "verdict_picture": verdict_picture}
    templates.globals |= {"finding_lines": finding_lines, "ladder_rows": _ladder_rows, "main_settings": _main_settings}
    templates.globals |= {"estimate_text": _estimate_text, "QUALITY": _QUALITY}
    templates.filters["plain"] = Markup
    return templates
