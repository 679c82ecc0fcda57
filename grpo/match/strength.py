"""Strength of a run's champion in words."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from grpo.match.ladder import BASELINE_RUNGS, BaselineReport, Placement, Rung
from grpo.match.matches import MatchReport
from grpo.match.selection import Selection

_ENOUGH: Final = 30  # Games for the word "always".
_EVEN: Final = 0.5


def strength_in_words(decision: Selection, baseline: BaselineReport, rungs: Iterable[Rung]) -> str:
    """Return what games with best moves show of the champion, and of its start if GRPO made the champion.

    `rungs`: the ladder's engine opponents, in order.
    """
    opponents = {rung.name: rung.words for rung in (*rungs, *BASELINE_RUNGS.values())}
    if decision.promoted:
        sentences = [
            _sentence("The champion", _on_ladder(decision.ladder), opponents),
            _sentence("Its start, before GRPO,", baseline.matches.items(), opponents),
        ]
    else:
        matches = (*baseline.matches.items(), *_on_ladder(decision.ladder_initial or baseline.ladder))
        sentences = [_sentence("The champion", matches, opponents)]
    return " ".join(filter(None, sentences))


def _on_ladder(place: Placement | None) -> Iterator[tuple[str, MatchReport]]:
    if place is not None:
        yield from ((games.rung, games.match) for games in place.games)


def _sentence(subject: str, matches: Iterable[tuple[str, MatchReport]], opponents: Mapping[str, str]) -> str:
    """Use the match with most pairs against each opponent: `dict` keeps the last."""
    largest = dict(sorted(matches, key=lambda match: match[1].score.num_pairs))
    parts = list[str]()
    for name, words in opponents.items():
        if (match := largest.get(name)) is not None:
            counts = ("{:,}/{:,}/{:,}" if parts else "won {:,}, drawn {:,}, lost {:,}").format(match.wins, match.draws, match.losses)
            parts.append(f"{_verb(match)} {words} ({counts})")
    *first, last = parts or [""]
    return f"{subject} {', '.join(first)}{' and ' if first else ''}{last}." if parts else ""


def _verb(match: MatchReport) -> str:
    num_games = match.wins + match.draws + match.losses
    always = "always " if num_games >= _ENOUGH and num_games in (match.wins, match.losses) else ""
    if match.score.low > _EVEN:
        return f"{always}beats"
    return f"{always}loses to" if match.score.high < _EVEN else "is not shown to differ from"
