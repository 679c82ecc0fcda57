"""Measure the pretrained policy's strength before GRPO changes it."""

from typing import Any, Final

from grpo.base.files import write_json
from grpo.base.seeding import numpy_stream
from grpo.diagnosis.records import Record
from grpo.match.ladder import Rung
from grpo.match.players import Player
from grpo.settings.shared import interval_names
from steps.cards.state import CardPart, Seen
from steps.dataset import position_keys, read_boards
from steps.measure import Arena, read_ladder
from steps.names import DECISIONS, REPORT
from steps.policies.open import open_policy
from steps.run.step import Step
from steps.run.work import Work

STEP: Final = Step(
    name="baseline",
    says="Measures the pretrained policy before GRPO: games against a random mover and Stockfish, its rating on the ladder, and its"
    " regret (win probability lost per move) on held-out boards.",
    reads=("seed", "language", "evaluation"),
    takes=("boards", "pretrained", "calibrated", "engine", "device", "book"),
    shows=("baseline/score_random", "baseline/score_engine", "baseline/rating", "heldout/regret_best"),
    pages=(REPORT, DECISIONS),
    resources="games",
)


def body(work: Work) -> None:
    """Write held-out regret, place on the ladder, and scores against a random mover and Stockfish, as the policy stands before GRPO."""
    table, ladder = read_boards(work.inputs["boards"]), read_ladder(work.inputs["calibrated"])
    policy = open_policy(work.inputs["pretrained"], work.device, rules=work.settings.language)
    heldout = policy.heldout(table)
    work.log(Record(0, heldout))
    policy.write_decisions(work.folder, table)
    player = policy.best_player("pretrained", seed=work.settings.seed, stream=("baseline", "asked again"))
    used = position_keys(work.inputs["boards"])
    with Arena(work) as arena:
        num_placed = arena.num_ladder_openings(ladder)
        arena.expect(2 * (2 * arena.config.num_baseline_pairs + num_placed), "games at most")
        matches = _matches(work, arena, player, used)
        [placement] = arena.place([player], ladder, arena.openings(num_placed, used, "placement", "pretrained"), "pretrained")
    rating = (placement.rating, placement.low, placement.high)
    work.log(Record(0, dict(zip(interval_names("baseline/rating"), rating, strict=True))))
    write_json(work.folder / REPORT, {"heldout": heldout, "matches": matches, "ladder": placement.facts(ladder)})


def _matches(work: Work, arena: Arena, player: Player, used: set[str]) -> dict[str, Any]:
    """Return the matches against a random mover and against Stockfish, by the opponent's name."""
    opponents = {"random": Rung(nodes=1, random_share=1), "engine": Rung(nodes=1, random_share=0)}
    openings = arena.openings(arena.config.num_baseline_pairs, used, "baseline")
    matches: dict[str, Any] = {}
    for kind, rung in opponents.items():  # The same openings for both: these scores are never added up.
        result = arena.match(player, rung.player(arena.pool, numpy_stream(work.settings.seed, "baseline", kind)), openings)
        matches[rung.name] = result.facts()
        interval, names = result.interval(), interval_names(f"baseline/score_{kind}")
        work.log(Record(0, dict(zip(names, (interval.score, interval.low, interval.high), strict=True))))
    return matches


def card(seen: Seen) -> list[CardPart]:
    """Return the card: the strength of the pretrained policy before GRPO."""
    from steps.cards.pages import baseline_page

    return baseline_page(seen)
