"""The dataset's steps as the flow calls them: build, join and check the boards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from grpo.base.files import read_json, sha256_file
from grpo.dataset.engine_games import ENGINE
from steps.bodies import build_boards as build_body
from steps.bodies import check_boards as check_body
from steps.bodies import join_boards as join_body
from steps.pipeline.here import Here
from steps.pipeline.job import Job
from steps.pipeline.run_step import part_of, run_step
from steps.step_io.dataset import preview
from steps.step_io.names import BOARDS, BOARDS_PREVIEW, REPORT
from steps.step_io.work import Sink
from steps.store.outputs import StepOutput
from steps.tracking.child_run import ChildRun
from steps.tracking.launch import launch_of
from steps.tracking.tags import DATASET, ENGINE_GAMES, SOURCES

_MAX_NAMED: Final = 20


def build_boards(job: Job, task: int, sinks: Sequence[Sink] = ()) -> StepOutput:
    """Build one task's part of the dataset's units; a resumed run has its origin's dataset, and builds nothing."""
    if job["origin"] is not None:
        return job["origin"]["outputs"]["join_boards"]
    here, spec = Here(job), build_body.SPEC
    machine, settings = here.machine, here.settings
    units = range(task, settings.boards.num_units, settings.boards.num_tasks)
    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(settings) | {"units": list(units)},
        inputs=here.inputs(spec),
        work=lambda work: build_body.build_units(settings, units, here.engine, machine.stockfish, work),
        sinks=sinks,
        part=part_of(task, settings.boards.num_tasks),
    )


def join_boards(job: Job, parts: Sequence[StepOutput]) -> StepOutput:
    """Join the parts into the dataset, with exact quotas and no board twice."""
    here, spec = Here(job), join_body.SPEC
    hashes = [_unit_hashes(here.open(part)) for part in parts] if job["origin"] is None else []
    units = {name: digest for part in hashes for name, digest in part.items()}

    def publish(folder: Path, child: ChildRun) -> None:
        report = read_json(folder / REPORT)
        digest = sha256_file(folder / BOARDS)
        child.dataset(
            name=f"{launch_of(job['settings']).preset} boards, {report['rows']:,}",
            digest=digest,
            source=(folder / BOARDS).as_uri(),
            profile={"num_rows": report["rows"]} | {name: report[name] for name in ("phases", "splits", "sources", "labels")},
        )
        child.tag({DATASET: digest, SOURCES: _sources(report["sources"])})
        child.content(BOARDS_PREVIEW, preview(folder / BOARDS))

    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(here.settings),
        # The units' own hashes, not those of the tasks that built them: how many tasks there were changes nothing.
        inputs=here.inputs(spec) | units,
        work=lambda work: join_body.join_units(here.settings, [here.open(part) for part in parts], work),
        publish=publish,
    )


def check_boards(job: Job, boards: StepOutput) -> StepOutput:
    """Gate the dataset; raises ChecksError with a readable report when an expectation does not hold."""
    here, spec = Here(job), check_body.SPEC
    return run_step(
        job,
        here.machine,
        spec,
        settings=spec.settings(here.settings),
        inputs=here.inputs(spec, boards=boards),
        work=lambda work: check_body.check_dataset(here.settings, here.open(boards), work),
    )


def _sources(boards: Mapping[str, int]) -> str:
    """Return the files with the most boards, in a line."""
    if set(boards) == {ENGINE}:
        return ENGINE_GAMES
    return ", ".join(f"{name} {count:,} boards" for name, count in Counter(boards).most_common(_MAX_NAMED))


def _unit_hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.glob("unit-*"))}
