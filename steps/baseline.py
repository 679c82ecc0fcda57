"""The step `baseline`. The ladder is a set of rated opponents ("rungs")."""

from typing import Final

from grpo.base.documents import write_document
from grpo.base.seeding import numpy_stream
from grpo.match.ladder import BASELINE_RUNGS, BaselineReport, num_openings_to_place
from grpo.match.matches import MatchReport, Pairing
from grpo.match.players import Player
from grpo.metrics.records import Record
from grpo.statistics.intervals import Unit, elo_estimate
from grpo.viewer.decisions import Decisions
from steps.cards.page import CardPart, Seen, page_part
from steps.common.dataset import position_keys, read_boards
from steps.common.measure import Arena, interval_metrics, read_ladder
from steps.common.policies.competitor import Competitor
from steps.common.policies.open import open_policy
from steps.names import DECISIONS, REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="baseline",
    says="Measures the pretrained policy before GRPO: games against a random mover and Stockfish, a rating on the ladder, and the"
    " regret (win probability lost per move) on held-out boards.",
    reads=("seed", "evaluation"),
    reads_kind=True,
    inputs=("join_boards", "pretrain", "calibrate"),
    outside=(Outside.ENGINE, Outside.DEVICE, Outside.BOOK),
    shows=("baseline/score_random", "baseline/score_engine", "baseline/rating", "heldout/regret_best"),
    pages=(REPORT, DECISIONS),
    resources="games",
    is_registered=True,
)


def body(work: Work) -> None:
    table, ladder = read_boards(work.inputs["join_boards"]), read_ladder(work.inputs["calibrate"])
    policy = open_policy(work.inputs["pretrain"], work.device, settings=work.settings)
    heldout = policy.heldout(table)
    work.log(Record(0, heldout))
    policy.write_decisions(work.folder, table)
    used = position_keys(work.inputs["join_boards"])
    with Arena(work.settings, work.machine, work.progress) as arena:
        num_placed = num_openings_to_place(1, arena.config)
        arena.expect(2 * (2 * arena.config.num_baseline_pairs + num_placed), "games at most")
        matches = _matches(work, arena, policy, used)
        [placed] = arena.place(
            [_player(work, policy, "placement")], ladder, arena.openings(num_placed, used, "placement", "pretrained"), "pretrained"
        )
    place = placed.placement(ladder)
    work.log(Record(0, interval_metrics("baseline/rating", place.rating)))
    write_document(work.folder / REPORT, BaselineReport(heldout=heldout, matches=matches, ladder=place))


def _player(work: Work, policy: Competitor, purpose: str) -> Player:
    # `stream` is only for a language model's retries.
    return policy.player("pretrained", temperature=None, seed=work.settings.seed, stream=("baseline", "asked again", purpose))


def _matches(work: Work, arena: Arena, policy: Competitor, used: set[str]) -> dict[str, MatchReport]:
    openings = arena.openings(arena.config.num_baseline_pairs, used, "baseline")
    pairings = [  # The same openings, because no result combines the scores.
        Pairing(
            first=_player(work, policy, kind),
            second=rung.player(arena.pool, numpy_stream(work.settings.seed, "baseline", kind)),
            openings=openings,
        )
        for kind, rung in BASELINE_RUNGS.items()
    ]
    matches = {}
    for (kind, rung), result in zip(BASELINE_RUNGS.items(), arena.matches(pairings), strict=True):
        matches[rung.name] = result.report()
        work.log(Record(0, interval_metrics(f"baseline/score_{kind}", result.interval())))
    return matches


def card(seen: Seen) -> list[CardPart]:
    from steps.cards.charts import Interval, interval_parts
    from steps.cards.pages import decision_boards

    if (report := seen.document(BaselineReport)) is None:
        return [page_part("baseline", seen=seen, report=None, matches={})]
    matches = report.matches | {f"ladder: {part.rung}": part.match for part in report.ladder.games}
    bars = [Interval(name, elo_estimate(match.score), "as played") for name, match in matches.items()]
    note = "Games with best moves, as played; clipped at 1,200 Elo."
    figure = interval_parts("Elo against each opponent", Unit.ELO, bars, zero="even", note=note)
    head = page_part("baseline", seen=seen, report=report, matches=matches)
    return [head, *figure, *decision_boards(seen.document(Decisions, DECISIONS), whose="the pretrained policy")]
