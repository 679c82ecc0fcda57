"""Summary page of a dataset and its checks: as Markdown for the tracker and cards, and as self-contained HTML.

Both are deterministic. Text from files and their names is escaped.
"""

import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import chess
import chess.svg
import pyarrow as pa

from data_checks.report import CheckResult, DatasetReport
from grpo.board.phases import PHASES, Phase
from grpo.dataset.table import Split

_EXAMPLES_PER_PHASE: Final = 2
_MAX_LISTED: Final = 12
"""Largest number of listed names: there may be thousands of sources, and a tracker note has at most 5,000 characters."""
"""Largest number of files in the table of the Markdown, for the same reason; `Sources` lists more."""
_MAX_NAME: Final = 80
_MARKDOWN_MARKS: Final = "\\`*_{}[]()#+!|~$"
_LABEL_COLOUR: Final = "#2f6fdfc0"
_BEST_COLOUR: Final = "#1f9d55c0"


def summary_markdown(report: DatasetReport, facts: Mapping[str, Any]) -> str:
    """Return verdict, counts and suites as Markdown in at most about 5,000 characters."""
    lines = [
        f"**{_plain(_capitalised(report.verdict))}.** {_size(facts)}",
        "",
        "| phase | met in the source | kept |",
        "| --- | ---: | ---: |",
        *(f"| {phase} | {met:,} | {kept:,} |" for phase, met, kept in _phases(facts)),
        "",
        *(f"- {title}: {_plain(_listed(counts))}" for title, counts in _countings(facts) if counts),
        "",
        "| suite | checks | failed |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {len(suite.results)} | {suite.num_failed} |" for name, suite in report.suites.items()),
    ]
    return "\n".join(lines) + "\n"


def summary_text(facts: Mapping[str, Any]) -> str:
    """Return the counts as plain text."""
    return "\n".join([_size(facts), *(f"{title}: {_listed(counts)}" for title, counts in _countings(facts) if counts)])


def summary_page(report: DatasetReport, facts: Mapping[str, Any], boards: pa.Table) -> str:
    """Return the HTML page, with diagrams of six boards."""
    counted = [(title, counts) for title, counts in _countings(facts) if counts]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Dataset: {_text(report.verdict)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Dataset</h1>
<p class="verdict {"met" if report.is_met else "failed"}">{_text(_capitalised(report.verdict))}.</p>
<p>{_text(_size(facts))}</p>
<h2>Phases</h2>
<p>Share of the positions met in the source, before balancing, and of the boards kept.</p>
{_histogram(_phases(facts))}
<h2>Counts</h2>
<div class="counts">
{"".join(_table(title, counts) for title, counts in counted)}</div>
<h2>Checks</h2>
{"".join(_suite(name, suite.results) for name, suite in report.suites.items())}
<h2>Examples</h2>
<p>Two boards a phase, those whose keys have the least hash, seen by the player to move. Arrows: <span class="label">label</span>,
<span class="best">best move by value</span>.</p>
<div class="examples">
{"".join(map(_example, example_rows(boards)))}</div>
</main>
</body>
</html>
"""


def example_rows(boards: pa.Table) -> list[dict[str, Any]]:
    """Return two rows of each phase, those whose keys have the smallest hash: arbitrary but always the same."""
    columns = [boards[name].to_pylist() for name in ("phase", "key")]
    order: dict[Phase, list[tuple[bytes, int]]] = {phase: [] for phase in PHASES}
    for index, (phase, key) in enumerate(zip(*columns, strict=True)):
        if phase in PHASES and key is not None:
            order[Phase(phase)].append((hashlib.sha256(key.encode()).digest(), index))
    chosen = [index for phase in PHASES for _, index in sorted(order[phase])[:_EXAMPLES_PER_PHASE]]
    rows: list[dict[str, Any]] = boards.take(pa.array(chosen, pa.int64())).to_pylist()
    return rows


def _size(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['rows']:,} boards from {facts['used_games']:,} games and listed positions, of {facts['games']:,} usable ones;"
        f" {facts['rejected_lines']:,} were rejected, {facts['duplicates']:,} repeated positions were left out."
    )


def _phases(facts: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    return [(phase.value, facts["natural_phases"][phase], facts["phases"][phase]) for phase in PHASES]


def _countings(facts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    signatures = facts["endgame_signatures"]
    return [
        ("Splits", {split.value: facts["splits"].get(split, 0) for split in Split}),
        ("Sources", facts["sources"]),
        ("Labels from", facts["labels"]),
        ("Missing, of those wanted", facts["missing"]),
        ("Games rejected", facts["rejected"]),
        ("Positions left out", facts["left_out"]),
        (f"Endgames, the commonest of {signatures['distinct']:,} kinds of material", dict(_commonest(signatures["commonest"])[0])),
    ]


def _commonest(counts: Mapping[str, int]) -> tuple[list[tuple[str, int]], int]:
    """Return the most frequent names (ties by name) with counts, and the number of other names."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(_cut(name), count) for name, count in ordered[:_MAX_LISTED]], len(ordered[_MAX_LISTED:])


def _listed(counts: Mapping[str, int]) -> str:
    shown, num_others = _commonest(counts)
    return ", ".join(f"{name} {count:,}" for name, count in shown) + (f" and {num_others:,} more" if num_others else "")


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    """Return the text on one line, escaped for Markdown."""
    text = html.escape(" ".join(text.split()))
    return "".join(f"&#{ord(character)};" if character in _MARKDOWN_MARKS else character for character in text)


def _text(text: Any) -> str:
    return html.escape(str(text))


def _histogram(rows: Sequence[tuple[str, int, int]]) -> str:
    totals = [max(1, sum(met for _, met, _ in rows)), max(1, sum(kept for _, _, kept in rows))]
    bars = []
    for column, (phase, *counts) in enumerate(rows):
        bars.append(f'<text x="{column * 120 + 60}" y="172" text-anchor="middle">{_text(phase)}</text>')
        for index, (count, total, what) in enumerate(zip(counts, totals, ("met", "kept"), strict=True)):
            height = 130 * count / total
            x, y = column * 120 + 14 + index * 47, 150 - height
            bars.append(f'<rect class="{what}" x="{x}" y="{y:.1f}" width="44" height="{height:.1f}"/>')
            bars.append(f'<text class="number" x="{x + 22}" y="{y - 4:.1f}" text-anchor="middle">{count / total:.0%}</text>')
    words = "; ".join(f"{phase}: {met:,} met, {kept:,} kept" for phase, met, kept in rows)
    return (
        f'<svg class="histogram" viewBox="0 0 360 180" role="img" aria-label="{_text(words)}">\n'
        f'<line x1="0" y1="150" x2="360" y2="150"/>\n{"".join(bars)}\n</svg>\n'
        f'<p><span class="key met"></span> met ({totals[0]:,}) <span class="key kept"></span> kept ({totals[1]:,})</p>'
    )


def _table(title: str, counts: Mapping[str, int]) -> str:
    shown, num_others = _commonest(counts)
    rows = "".join(f"<tr><td>{_text(name)}</td><td>{count:,}</td></tr>" for name, count in shown)
    rest = f'<tr><td colspan="2">and {num_others:,} more</td></tr>' if num_others else ""
    return f"<table><caption>{_text(title)}</caption><tbody>{rows}{rest}</tbody></table>\n"


def _suite(name: str, results: Iterable[CheckResult]) -> str:
    results = tuple(results)
    failed = sum(not result.is_met for result in results)
    outcome = f"{failed} of {len(results)} failed" if failed else f"all {len(results)} met"
    return (
        f"<details{' open' if failed else ''}><summary><strong>{_text(name)}</strong>: {outcome}</summary>\n<ul>\n"
        f"{''.join(map(_check, results))}</ul></details>\n"
    )


def _check(result: CheckResult) -> str:
    mark, word = ("✓", "met") if result.is_met else ("✗", "failed")
    found = f"{result.num_checked:,} checked"
    more = ""
    if not result.is_met:
        found = f"{result.num_unexpected:,} of {found} break it"
        shown = "".join(f"<li>{_text(example)}</li>" for example in result.examples)
        more = f"<ul>{shown}</ul>Remedy: {_text(result.remedy)}"
    return (
        f'<li class="check {word}"><span aria-label="{word}">{mark}</span> <code>{_text(result.name)}</code>'
        f" <small>{found}</small><br>{_text(result.meaning)}{more}</li>\n"
    )


def _example(row: Mapping[str, Any]) -> str:
    board = chess.Board(row["fen"])
    label, best = row["label"], row["moves"][row["values"].index(max(row["values"]))]
    arrows = [_arrow(best, _BEST_COLOUR)] + ([_arrow(label, _LABEL_COLOUR)] if label != best else [])
    drawn = chess.svg.board(board, orientation=board.turn, arrows=arrows, size=360)
    worth = dict(zip(row["moves"], row["values"], strict=True))
    place = f"{row['phase']}, {row['split']}: {_cut(row['source'])} at {row['offset']:,}, ply {row['ply']}"
    moves = (
        f"label {board.san(chess.Move.from_uci(label))} {worth[label]:.3f} (from the {row['label_from']}),"
        f" best {board.san(chess.Move.from_uci(best))} {worth[best]:.3f}"
    )
    return f"<figure>{drawn}<figcaption>{_text(place)}<br>{_text(moves)}<br><code>{_text(row['fen'])}</code></figcaption></figure>\n"


def _arrow(move: str, colour: str) -> chess.svg.Arrow:
    parsed = chess.Move.from_uci(move)
    return chess.svg.Arrow(parsed.from_square, parsed.to_square, color=colour)


_STYLE: Final = """
:root {
  --ink: #1c2128; --paper: #fff; --faint: #6b7280; --line: #d5d9df; --met: #1a7f45; --failed: #c8321f; --bar: #8fa3bf; --bar2: #2f6fdf
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ee; --paper: #14171c; --faint: #98a2b3; --line: #343b46; --met: #4cc38a; --failed: #ff7a66; --bar: #5b6b82; --bar2: #6ea0ff
  }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; margin: .5rem 0 } h2 { font-size: 1.15rem; margin: 1.5rem 0 .5rem }
code { font-size: .85em; overflow-wrap: anywhere } small { color: var(--faint) }
.verdict { font-weight: 600; padding: .5rem .75rem; border-left: .3rem solid; overflow-wrap: anywhere }
p.met { border-color: var(--met) } p.failed { border-color: var(--failed) }
.histogram { width: 100%; max-width: 30rem } .histogram text { fill: var(--ink); font-size: 13px } .histogram .number { font-size: 11px }
.histogram line { stroke: var(--line) } .histogram .met { fill: var(--bar) } .histogram .kept { fill: var(--bar2) }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .2em 0 .6em } .key.met { background: var(--bar) }
.key.kept { background: var(--bar2) }
.counts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 1rem; align-items: start }
table { width: 100%; border-collapse: collapse; font-size: .9rem } caption { text-align: left; font-weight: 600 }
td { border-top: 1px solid var(--line); padding: .15rem 0; overflow-wrap: anywhere } td + td { text-align: right; padding-left: 1rem }
details { border-top: 1px solid var(--line); padding: .4rem 0 } summary { cursor: pointer } details ul { padding-left: 1rem }
.check { list-style: none; margin: .4rem 0; overflow-wrap: anywhere } .check.met > span { color: var(--met) }
.check.failed > span { color: var(--failed) } .label { color: var(--bar2) } .best { color: var(--met) }
.examples { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); gap: 1rem }
figure { margin: 0 } figure svg { width: 100%; height: auto } figcaption { font-size: .85rem }
"""
