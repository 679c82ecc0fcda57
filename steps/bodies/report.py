"""The run's results: one document, and the report as a page."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from grpo.base.files import MANIFEST, read_json, write_json
from grpo.board.phases import PHASES
from grpo.metrics.table import Record
from grpo.policy.files import LANGUAGE, NETWORK
from grpo.settings.roles import compared_settings, flattened
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import CHECKPOINTS, DECISIONS, FINDINGS, GAMES_PAGE, PGN, REPORT, REPORT_PAGE, RESULTS
from steps.step_io.results import (
    CANDIDATE_RATING,
    FORMAT,
    GAIN,
    GAIN_ADJUDICATED,
    LADDER_GAIN,
    LADDER_GAIN_ADJUDICATED,
    PRETRAINED_RATING,
    PREVIOUS,
    SAMPLED,
    START_RATING,
    Results,
    measurements,
)
from steps.step_io.results_text import report_markdown
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work, read_history

SPEC: Final = StepSpec(
    name="report",
    body=__name__,
    inputs=("join_boards", "check_boards", "pretrain", "calibrate", "baseline", "finetune", "select"),
    published=(REPORT_PAGE, RESULTS),
)


def write_report(folders: Mapping[str, Path], work: Work) -> None:
    """Write `results.json`, and `report.md` for people, from the outputs of all steps by name."""
    results = run_results(folders)
    write_json(work.folder / RESULTS, results)
    (work.folder / REPORT_PAGE).write_text(report_markdown(results), encoding="utf-8")


def run_results(folders: Mapping[str, Path]) -> Results:
    """Return the results of a run, given the folders of its steps' outputs by name."""
    reports = {step: read_json(folder / REPORT) for step, folder in folders.items()}
    manifests = {step: read_json(folder / MANIFEST) for step, folder in folders.items()}
    histories = {step: read_history(folders[step]) for step in ("baseline", "finetune", "select")}
    decision, baseline = reports["select"], reports["baseline"]
    settings: dict[str, Any] = {}
    for manifest in manifests.values():
        settings |= flattened(manifest["parts"]["settings"])
    candidate = _last(record for record in histories["finetune"] if record.step == decision["candidate_step"])
    start, adjudicated = baseline["heldout"], _adjudicated(_matches(decision, baseline))
    chosen = manifests["select"]
    outputs = {step: {name: each[name] for name in ("version", "output_hash")} for step, each in manifests.items()}
    place = {step: f"outputs/{step}/{each['version']}" for step, each in outputs.items()}
    return Results(
        format=FORMAT,
        kind=LANGUAGE if "parse_rates" in reports["pretrain"] else NETWORK,
        verdict=decision["sentence"],
        decision=decision,
        measurements=measurements(
            {
                "baseline": _last(histories["baseline"]) | adjudicated,
                "finetune": candidate,
                "select": _last(histories["select"]) | adjudicated,
            },
            outputs={step: each["output_hash"] for step, each in outputs.items()},
            settings=compared_settings(settings),
            engine=chosen["parts"]["inputs"]["engine"],
            num_games=dict(_num_games(decision, baseline)),
        ),
        ladder=reports["calibrate"],
        regret={
            str(phase): {"before": start[name], "after": candidate.get(name)}
            for phase in PHASES
            if (name := f"heldout/regret_best/{phase}") in start
        },
        boards=reports["join_boards"],
        pretraining=reports["pretrain"],
        training=reports["finetune"],
        findings=read_json(path) if (path := folders["finetune"] / FINDINGS).is_file() else None,
        settings=settings,
        engine=chosen["parts"]["inputs"]["engine"],
        code=chosen["code"],
        outputs=outputs,
        places={
            "champion": f"{place['select']}/{CHAMPION}",
            "peak": f"{place['select']}/{PEAK}",
            "checkpoints": f"{place['finetune']}/{CHECKPOINTS}",
            "games": f"{place['select']}/{PGN}",
            "viewer": f"{place['select']}/{GAMES_PAGE}",
        },
        decisions=read_json(path) if (path := folders["select"] / DECISIONS).is_file() else {},
    )


def _last(records: Iterable[Record]) -> dict[str, float]:
    """Return the last value of each metric."""
    return {name: value for record in records for name, value in record.metrics.items()}


def _matches(decision: Mapping[str, Any], baseline: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the metric of a match's score, and the match."""
    yield GAIN, decision["confirmation_best_moves"]
    yield SAMPLED, decision["confirmation_sampled_moves"]
    if decision["previous_champion"] is not None:
        yield PREVIOUS, decision["previous_champion"]
    for name, match in baseline["matches"].items():
        yield f"baseline/score_{'random' if name == 'random' else 'engine'}", match


def _adjudicated(matches: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Return the adjudicated scores, which are no metrics, as if they were."""
    ends = (("", "score"), ("_low", "low"), ("_high", "high"))
    return {
        f"{metric}_adjudicated{end}": match["adjudicated"][key] for metric, match in matches if "adjudicated" in match for end, key in ends
    }


def _num_games(decision: Mapping[str, Any], baseline: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for metric, match in _matches(decision, baseline):
        yield from ((name, 2 * match["num_pairs"]) for name in (metric, f"{metric}_adjudicated"))
    yield GAIN_ADJUDICATED, 2 * decision["confirmation_best_moves"]["num_pairs"]
    of_start, of_candidate = (sum(2 * part["num_pairs"] for part in decision[name]["games"]) for name in ("ladder_initial", "ladder"))
    yield from ((metric, of_start + of_candidate) for metric in (LADDER_GAIN, LADDER_GAIN_ADJUDICATED))
    yield from ((START_RATING, of_start), (CANDIDATE_RATING, of_candidate))
    yield PRETRAINED_RATING, sum(2 * part["num_pairs"] for part in baseline["ladder"]["games"])
