"""A second machine, with nothing but the tracking store, goes on from a run of the first; what is damaged there never becomes an output."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest
from whole_runs import CHAMPION_AT, CODE, ENGINE, KEPT, PEAK_AT, WholeRun, do_run, write_selection

from grpo.base.files import verified_manifest, write_json
from grpo.policy.files import ACTION_TABLE_HASH
from grpo.settings.roles import settings_read_by
from grpo.settings.tree import Settings, read_settings
from steps.pipeline.job import BEFORE_FINETUNE, Job, ResumeOrigin
from steps.pipeline.resume import ResumeError, find_origin, origin_checkpoint, take_over
from steps.pipeline.run_step import run_step
from steps.runs.names import NotFoundError
from steps.runtime.machine import Machine
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store.outputs import Store
from steps.tracking.tracker import Tracker


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Path:
    """A folder with a tracking store, which both machines reach."""
    return give_tables(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def first(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    home = tmp_path_factory.mktemp("first")
    return Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{shared / 'mlflow.db'}", device="cpu", num_threads=1)


@pytest.fixture
def second(first: Machine, tmp_path: Path) -> Machine:
    return replace(first, home=tmp_path / "second")


@pytest.fixture(scope="module")
def settings() -> Settings:
    return read_settings("test")


Ran = Callable[..., WholeRun]


@pytest.fixture(scope="module")
def ran(first: Machine, settings: Settings) -> Ran:
    """Return what does all steps of a run on the first machine, up to the named one."""
    numbers = count(1)
    return lambda until="", **bodies: do_run(first, settings, f"run-{next(numbers)}", until, **bodies)


@pytest.fixture(scope="module")
def run(ran: Ran) -> WholeRun:
    """A whole run of the first machine."""
    return ran()


def gone_on_from(name: str, machine: Machine, settings: Settings) -> tuple[ResumeOrigin, list[str]]:
    """Return the origin and what differs, after all that it takes has come to the machine."""
    origin = find_origin(name, machine)
    code = {**CODE, "lock": origin["metaflow_run"]}
    changes = take_over(origin, settings, ENGINE, allowed=(), code=code, device="cpu a", machine=machine)
    return origin, [str(change) for change in changes]


def files(home: Path) -> list[str]:
    """Return the outputs' files, without what belongs to no output."""
    return sorted(path.relative_to(home).as_posix() for path in (home / "outputs").rglob("*") if path.is_file())


def test_a_second_machine_gets_what_it_needs_and_no_more(
    run: WholeRun, shared: Path, first: Machine, second: Machine, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    origin, changes = gone_on_from(run.name, second, settings)
    assert (origin["policy_step"], origin["metaflow_run"], changes) == (KEPT[0], run.name, [])
    here, there = Store(second.home), Store(first.home)
    for step in BEFORE_FINETUNE:
        output = run.outputs[step]
        assert verified_manifest(here.open(output)) == verified_manifest(there.open(output)), "what is aside came too"
    assert not here.has(run.outputs["finetune"]), "of finetune the one checkpoint is fetched"
    folder = origin_checkpoint(origin, second)
    assert folder is not None
    assert (folder / "optimiser.safetensors").read_bytes() == b"2" * 1000
    assert verified_manifest(folder)["step"] == KEPT[0]
    assert [name for name in files(second.home) if "optimiser" in name] == [
        (folder / "optimiser.safetensors").relative_to(second.home).as_posix()
    ]
    told = [line for line in capsys.readouterr().err.splitlines() if "fetched from MLflow run" in line]
    assert [line.partition(":")[0] for line in told] == ["pretrain", "join_boards", "check_boards", "calibrate", "baseline", "finetune"]
    (shared / "mlartifacts").rename(shared / "away")  # What was fetched once is there.
    spec, job = StepSpec(name="pretrain", body="steps.step_io.work"), Job(**{**run.job, "origin": origin})
    assert run_step(job, second, spec, settings={}, inputs={}, work=write_selection) == {**run.outputs["pretrain"], "reused": True}
    shutil.rmtree(shared / "mlartifacts")  # Of the run that came after.
    (shared / "away").rename(shared / "mlartifacts")


@pytest.mark.parametrize(
    ("name", "step"), [("champion", CHAMPION_AT), ("v1", PEAK_AT), (f"run-1/{CHAMPION_AT}", CHAMPION_AT), ("run-1/0", 0)]
)
def test_any_name_of_a_policy_can_be_gone_on_from(name: str, step: int, run: WholeRun, second: Machine, settings: Settings) -> None:
    origin, _ = gone_on_from(name, second, settings)
    assert (origin["metaflow_run"], origin["policy_step"]) == (run.name, step)
    found = origin_checkpoint(origin, second)
    assert found is None or (found / "optimiser.safetensors").read_bytes() == b"%d" % step * 1000
    assert (found is None) == (step == 0), "that is the pretrained policy"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run-1/4", "there is no checkpoint of step 4: .* Available steps: 2, 6"),
        ("rum-1", "did you mean run-1?"),
        ("peak/2", "is one check"),
    ],
)
def test_what_is_not_there_is_refused_in_the_words_of_the_option(
    name: str, words: str, run: WholeRun, second: Machine, settings: Settings
) -> None:
    with pytest.raises(NotFoundError, match=f"^--resume-from {name}: .*{words}"):
        gone_on_from(name, second, settings)
    assert not second.home.exists(), "nothing was fetched for it"


def test_a_run_that_failed_is_gone_on_from_by_a_step_that_it_kept(ran: Ran, second: Machine, settings: Settings) -> None:
    run = ran(until="finetune")
    assert gone_on_from(f"{run.name}/6", second, settings)[0]["policy_step"] == CHAMPION_AT
    run = ran(until="pretrain")
    with pytest.raises(ResumeError, match=r"has no output of calibrate, baseline, finetune"):
        gone_on_from(f"{run.name}/2", second, settings)


def test_settings_that_are_refused_fetch_no_dataset(run: WholeRun, second: Machine, settings: Settings) -> None:
    other = settings.model_copy(update={"seed": 1})
    with pytest.raises(ResumeError, match=r"\n  seed: origin 0, now 1\n"):
        gone_on_from(run.name, second, other)
    assert not any("boards.parquet" in name for name in files(second.home))


def test_another_action_table_is_refused(ran: Ran, second: Machine, settings: Settings) -> None:
    def write(work: Work) -> None:
        write_json(work.folder / "policy.json", {"action_table": "f" * 64})

    run = ran(pretrain=write)
    with pytest.raises(ResumeError, match=rf"\n  action_table: origin 'ffffffffffffffff', now '{ACTION_TABLE_HASH[:16]}'\n"):
        gone_on_from(run.name, second, settings)


def test_the_origins_ladder_and_baseline_are_taken_unless_this_run_measures_otherwise(
    run: WholeRun, second: Machine, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    origin, _ = gone_on_from(run.name, second, settings)
    # A run of its own: what it makes is none of the origin's outputs.
    resumed = Tracker(second).start_flow_run(metaflow_run="resumed", settings={}, tags={}, note="")
    job = Job(**{**run.job, "mlflow_run": resumed, "origin": origin})
    for step, change in product(("calibrate", "baseline"), ("", "settings", "engine", "device")):
        sliced = settings_read_by(step, settings)
        inputs = {"engine": str(ENGINE), "device": "cpu a"}
        if change == "settings":
            sliced["evaluation"]["max_plies"] += 1
        elif change:
            inputs[change] = "another"
        output = run_step(
            job,
            second,
            StepSpec(name=step, body="steps.step_io.work"),
            settings=sliced,
            inputs=inputs,
            work=lambda work: write_json(work.folder / "report.json", {"anew": 1}),
        )
        is_anew = change in ("settings", "engine")
        assert (output["output_hash"] != run.outputs[step]["output_hash"]) == is_anew, (step, change)
        assert (f"{step}: the origin's was measured with other settings or another engine" in capsys.readouterr().out) == is_anew
