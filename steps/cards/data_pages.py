"""Metaflow cards of `start` and of the dataset's steps."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from grpo.board.phases import PHASES
from grpo.settings.roles import flattened
from steps.cards.html import CardPart, TableCell, badge, block, details, heading, html_table, listing, paragraph
from steps.cards.state import Seen
from steps.pages.results import Boards
from steps.pages.templates import phase_table

_MAX_LISTED: Final = 12


def start_page(job: Mapping[str, Any]) -> list[CardPart]:
    """Return the card of `start`, from the job that it gives the other steps: run, code, what the preflight found, and settings."""
    code, origin = job["code"], job["origin"]
    rows: list[list[TableCell]] = [
        ["run", job["run"]],
        ["commit", f"{code['commit']}{', with uncommitted changes' if code['is_dirty'] else ''}"],
        ["resumes from", "nothing" if origin is None else f"{origin['name']}: run {origin['run']}, step {origin['step']:,}"],
        ["--fresh", "yes: no stored output is reused" if job["is_fresh"] else "no: stored outputs are reused"],
    ]
    settings = [[name, str(value)] for name, value in flattened(job["settings"]).items()]
    return [
        block(
            heading("Start", 1),
            html_table(["", ""], rows, wide=[1]),
            html_table(["", "found"], list(job["checks"].items()), caption="Preflight: all passed", wide=[1]),
            details("Settings", html_table(["setting", "value"], settings, wide=[1])),
        )
    ]


def build_page(seen: Seen) -> list[CardPart]:
    """Return the card of a task of `build_boards`."""
    report = seen.report()
    if "rows" in report:  # The report of a whole dataset: that of the origin run.
        reused = paragraph("The boards are those of the origin run, from which this run resumes; none were built.")
        return [block(heading("Boards of this task", 1), seen.state(), reused)]
    rows: list[list[TableCell]] = []
    for unit, facts in sorted(report.items(), key=lambda item: int(item[0])):
        lost = [sum(facts[name].values()) for name in ("rejected", "left_out")]
        rows.append([f"unit {unit}", facts["games"], facts["duplicates"], *lost, *(facts["natural_phases"][phase] for phase in PHASES)])
    headers = ["", "games", "duplicates", "games rejected", "positions left out", *(f"{phase}s found" for phase in PHASES)]
    caption = "What the source contained, by unit. A unit is a fixed part of the games; tasks share the units out among themselves."
    found = html_table(headers, rows, caption=caption) if rows else ""
    return [block(heading("Boards of this task", 1), seen.state(), found)]


def join_page(seen: Seen) -> list[CardPart]:
    """Return the card of `join_boards`: the dataset."""
    facts = seen.report()
    return [block(heading("Joined dataset", 1), seen.state()), *(_dataset(facts) if facts else [])]


def checks_page(seen: Seen) -> list[CardPart]:
    """Return the card of `check_boards`: the results of the dataset's checks."""
    report = seen.report()
    if not report:
        return [block(heading("Checks of the dataset", 1), seen.state())]
    results = [result for suite in report["suites"] for result in suite["results"]]
    num_failed = sum(not result["is_met"] for result in results)
    verdict = badge(f"{num_failed} failed", "bad") if num_failed else badge(f"all {len(results)} met", "good")
    suites = []
    for suite in report["suites"]:
        rows = [
            ["met" if result["is_met"] else "FAILED", result["name"], result["num_checked"], result["meaning"]]
            for result in suite["results"]
        ]
        failed = sum(not result["is_met"] for result in suite["results"])
        title = f"{suite['name']}: {f'{failed} of {len(rows)} failed' if failed else f'all {len(rows)} met'}"
        suites.append(details(title, html_table(["", "check", "checked", "what must hold"], rows, wide=[3]), is_open=failed > 0))
    return [
        block(
            heading("Checks of the dataset", 1),
            f"<p>{verdict}</p>",
            paragraph(_sizes(report["dataset"])),
            paragraph("The card of join_boards has its phases, splits and sources.", "soft"),
            *suites,
        )
    ]


def _dataset(facts: Mapping[str, Any]) -> Iterator[CardPart]:
    note = "The source has the phases of real games; the quotas select equal fractions."
    phases = html_table(*phase_table(Boards.of(facts)), caption="Boards by phase, before and after balancing")
    yield block(paragraph(_sizes(facts)), phases, paragraph(note, "soft"))
    tables = {
        "Splits": facts["splits"],
        "Sources": facts["sources"],
        "Labels from": facts["labels"],
        "Missing from the quotas": facts["missing"],
        "Games rejected": facts["rejected"],
        "Positions left out": facts["left_out"],
        f"Most common of {facts['endgame_signatures']['distinct']:,} endgame materials": facts["endgame_signatures"]["commonest"],
    }
    if facts["first_rejected"]:
        yield block(heading("First rejected games"), listing(facts["first_rejected"]))
    yield block(heading("Counts"), *(_counts(title, found) for title, found in tables.items() if any(found.values())))


def _sizes(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['rows']:,} boards from {facts['used_games']:,} games and listed positions, of {facts['games']:,} usable ones;"
        f" {sum(facts['rejected'].values()):,} were rejected, {facts['duplicates']:,} positions were duplicates."
    )


def _counts(title: str, found: Mapping[str, int]) -> str:
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    rest = len(ordered) - _MAX_LISTED
    rows: list[list[TableCell]] = [[name[:80], count] for name, count in ordered[:_MAX_LISTED]]
    return details(
        title, html_table(["", "count"], rows, wide=[0]), listing([f"and {rest:,} more"] if rest > 0 else []), is_open=len(rows) < 5
    )
