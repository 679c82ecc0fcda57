"""The step `report`.

The candidate is the checkpoint that games judge. "Champion before" is the registry's champion from earlier runs.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from grpo.base.documents import Document, read_document, write_document
from grpo.base.files import MANIFEST, read_json
from grpo.board.phases import PHASES
from grpo.dataset.reports import Boards
from grpo.diagnosis.findings import Diagnosis
from grpo.match.ladder import BaselineReport, LadderReport, Placement
from grpo.match.matches import MatchReport
from grpo.match.selection import Selection
from grpo.match.strength import strength_in_words
from grpo.metrics.shared import MOVE_QUALITY
from grpo.policy.files import policy_facts
from grpo.settings.names import flattened
from grpo.statistics.intervals import Estimate, Unit, regret_interval
from steps.cards.page import CardPart, Seen, markdown_part, page_part
from steps.names import CHAMPION, FINDINGS, MODEL_CARD, REPORT, REPORT_PAGE, RESULTS
from steps.pages.results import Measurement, Results, ResumedFrom, Training, read_results
from steps.pages.templates import page
from steps.run.step import OfRun, Outside, Step
from steps.run.work import Work, read_history

_INPUTS: Final = ("join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select")
STEP: Final = Step(
    name="report",
    says="Writes the run's results as one document, the report as a page, and the champion's model card.",
    inputs=_INPUTS,
    outside=(Outside.DEFAULTS,),
    of_run=(OfRun.ORIGIN, OfRun.VERSIONS),
    pages=(REPORT_PAGE, RESULTS, MODEL_CARD),
)
_Form = TypeVar("_Form", bound=Document)
_Yardstick = dict[str, str | None]  # What a result depends on besides the measured policy -> value or output hash.
_REGRET: Final = "heldout/regret_best"


def body(work: Work) -> None:
    results = run_results({name: work.inputs[name] for name in _INPUTS}, origin=work.facts.get("origin", ""))
    write_document(work.folder / RESULTS, results)
    results = read_results(work.folder / RESULTS)  # The file sorts keys, so the pages do too.
    (work.folder / REPORT_PAGE).write_text(page("report", results=results), encoding="utf-8")
    decision, name = results.decision, f"{CHAMPION} of {results.outputs['select']['version'][:12]}"
    hashes = {"weights (numbers, not the file)": str(decision.candidate_weights if decision.promoted else decision.initial_weights)}
    described = policy_facts(work.inputs["select"] / CHAMPION)
    text = page("model_card", results=results, run=name, policy_step=decision.champion_step, described=described, hashes=hashes)
    (work.folder / MODEL_CARD).write_text(text, encoding="utf-8")


def run_results(folders: Mapping[str, Path], *, origin: str = "") -> Results:
    """Return a run's results from the outputs of `_INPUTS`. `origin`: RUN/STEP (GRPO step) from which a resumed run began, else ""."""
    outputs = {output.step: output for output in map(_Output, folders.values())}
    decision, baseline = outputs["select"].report(Selection), outputs["baseline"].report(BaselineReport)
    candidate: dict[str, float] = {}
    for record in read_history(outputs["finetune"].folder):
        if record.step == decision.candidate_step:
            candidate |= record.metrics
    phases = {str(phase): name for phase in PHASES if (name := f"{_REGRET}/{phase}") in baseline.heldout}
    # Later steps win, because a resumed run may change settings that inherited steps have read.
    settings = {name: value for output in outputs.values() for name, value in flattened(output.parts["settings"]).items()}
    pretraining: dict[str, Any] = read_json(outputs["pretrain"].folder / REPORT)
    ladder = outputs["calibrate"].report(LadderReport)
    findings, (run, _, step) = outputs["finetune"].folder / FINDINGS, origin.rpartition("/")
    return Results(
        kind=settings["policy.kind"],
        origin=None if not origin else ResumedFrom(run=run, step=int(step)),
        decision=decision,
        measurements=tuple(_measured(outputs, baseline, decision, settings)),
        ladder=ladder,
        strength=strength_in_words(decision, baseline, ladder.rungs),
        quality={name: (baseline.heldout[name], candidate.get(name)) for name in MOVE_QUALITY},
        regret={phase: (baseline.heldout[name], candidate.get(name)) for phase, name in phases.items()},
        boards=outputs["join_boards"].report(Boards),
        pretraining=pretraining,
        training=outputs["finetune"].report(Training),
        findings=read_document(findings, Diagnosis) if findings.is_file() else None,
        settings=settings,
        engine=outputs["select"].parts["inputs"]["engine"],
        outputs={name: {key: output.manifest[key] for key in ("version", "output_hash")} for name, output in outputs.items()},
    )


class _Output:
    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_json(folder / MANIFEST)
        self.step, self.hash, self.parts = (self.manifest[name] for name in ("step", "output_hash", "parts"))

    def report(self, form: type[_Form]) -> _Form:
        return read_document(self.folder / REPORT, form)


def _measured(
    outputs: Mapping[str, _Output], baseline: BaselineReport, decision: Selection, settings: Mapping[str, Any]
) -> Iterator[Measurement]:
    """`compare` matches measurements by name, so names must not change."""
    book = outputs["baseline"].parts["inputs"].get("opening book", "")
    rules: _Yardstick = {"evaluation.max_plies": str(settings["evaluation.max_plies"]), "opening book": book}
    pretrained: _Yardstick = {"pretrained policy": outputs["pretrain"].hash}
    ladder: _Yardstick = {"ladder": outputs["calibrate"].hash}
    boards: _Yardstick = {"held-out boards": outputs["join_boards"].hash}
    output_hash = outputs["baseline"].hash
    for opponent, match in baseline.matches.items():
        if opponent == "random":
            yield from _match("pretrained against a random mover", match, rules, output_hash)
        else:  # `BASELINE_RUNGS` has two opponents.
            engine = {"engine": outputs["select"].parts["inputs"]["engine"]}
            yield from _match("pretrained against Stockfish (1 node)", match, rules | engine, output_hash)
    yield from _rating("pretrained on the ladder before GRPO (other openings)", baseline.ladder, ladder, output_hash)
    heldout, stderr_name = baseline.heldout, f"{_REGRET}_stderr"
    if stderr_name in heldout:
        yield _regret("pretrained policy", regret_interval(heldout[_REGRET], heldout[stderr_name]), boards, output_hash)
    if decision.candidate_step in decision.heldout_regret_best:
        regret = decision.heldout_regret_best[decision.candidate_step]
        yield _regret("candidate", regret, boards, outputs["finetune"].hash)
    output_hash, against = outputs["select"].hash, "candidate against"
    for measured in _match(f"{against} pretrained (best moves)", decision.confirmation_best_moves, pretrained | rules, output_hash):
        yield measured.model_copy(update={"decides": True})
    yield from _match(f"{against} pretrained (sampled at T = 1)", decision.confirmation_sampled_moves, pretrained | rules, output_hash)
    previous: _Yardstick = {"champion before": decision.previous_weights}
    yield from _match(f"{against} the champion before", decision.previous_champion, previous | rules, output_hash)
    if (gain := decision.ladder_gain) is not None:
        yield Measurement(
            name="candidate less pretrained on the ladder",
            unit=Unit.ELO,
            estimate=gain.played,
            adjudicated=gain.adjudicated,
            num_games=sum(place.num_games for place in (decision.ladder, decision.ladder_initial) if place is not None),
            yardstick=pretrained | rules | ladder,
            output=output_hash,
        )
    yield from _rating("pretrained on the ladder (openings of the candidate)", decision.ladder_initial, ladder, output_hash)
    yield from _rating("candidate on the ladder", decision.ladder, ladder, output_hash)


def _match(name: str, match: MatchReport | None, yardstick: _Yardstick, output: str) -> Iterator[Measurement]:
    if match is not None:
        yield Measurement(
            name=name,
            unit=Unit.SCORE,
            estimate=match.score,
            adjudicated=match.adjudicated,
            num_games=2 * match.score.num_pairs,
            yardstick=yardstick,
            output=output,
        )


def _regret(whose: str, regret: Estimate, boards: _Yardstick, output: str) -> Measurement:
    return Measurement(name=f"held-out regret of the {whose}", unit=Unit.REGRET, estimate=regret, yardstick=boards, output=output)


def _rating(name: str, place: Placement | None, yardstick: _Yardstick, output: str) -> Iterator[Measurement]:
    if place is not None:
        yield Measurement(name=name, unit=Unit.ELO, estimate=place.rating, num_games=place.num_games, yardstick=yardstick, output=output)


def card(seen: Seen) -> list[CardPart]:
    from steps.cards.pages import gain_chart, ladder_chart

    if (results := seen.document(Results, RESULTS)) is None:
        return [page_part("verdict", seen=seen, decision=None)]
    decision = results.decision
    strength = f"Champion of the run: step {decision.champion_step:,}. {decision.strength(decision.champion_step)}"
    head = page_part("verdict", seen=seen, decision=decision, more=[results.strength, strength, str(results.origin or "")])
    report = markdown_part(page("report_card", results=results))
    return [head, *gain_chart(decision), *ladder_chart(results.ladder, decision), report]
