"""What runs are promised by the store and its records alone: a run of three steps, at once with another, lost half-way, damaged."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.base.files import append_line
from steps.run.records import Run, RunFacts, Runs
from steps.run.step import StepOutput
from steps.run.store import Making, Store

STEPS = ("pretrain", "finetune", "end")
Place = str | Path


class Lost(BaseException):
    """The machine is gone."""


@pytest.fixture(params=["folder", "S3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "S3":
        request.getfixturevalue("aws")
    return "s3://shop/chess-grpo" if request.param == "S3" else tmp_path / "store"


def body(making: Making, inputs: list[Path], folder: Path, lose_at: int) -> None:
    """Go on counting in the progress folder, and write what was counted and taken in."""
    path = making.progress / "count"
    first = len(path.read_text().splitlines()) if path.exists() else 0
    print(f"from {first}")
    for number in range(first, 4):
        if number == lose_at:
            raise Lost
        append_line(path, str(number))
        making.save()
    (folder / "result").write_text("".join((each / "result").read_text() for each in inputs) + path.read_text())


def do_run(place: Place, home: Path, name: str, *, lose: tuple[str, int] = ("", -1), meet: Callable[[], object] = lambda: None) -> Run:
    """Do the steps of a run as tasks do them, each with a store of its own."""
    Runs(Store(place, home)).begin_run(facts(name))
    outputs: list[StepOutput] = []
    for step in STEPS:
        store = Store(place, home)
        attempt = Runs(store).begin(name, step, "", step)
        meet()
        output = store.find(step, step)
        if output is None:
            with store.making(step, step) as making:
                if making.output is None:
                    inputs = [store.open(each) for each in outputs]
                    with making.filling({}) as folder:
                        body(making, inputs, folder, lose[1] if step == lose[0] else -1)
                output = making.output
        assert output is not None
        attempt.end("finished", output=output)
        outputs.append(output)
    return read(place, home, name)


def facts(name: str) -> RunFacts:
    texts = dict.fromkeys(("preset", "tracking", "command", "label", "head", "launcher"), "")
    return RunFacts(**texts, run=name, settings={}, code={}, tags={}, texts={}, origin=None, started=1.0)  # type: ignore[typeddict-item]


def read(place: Place, home: Path, name: str) -> Run:
    run = Runs(Store(place, home)).get(name)
    assert run is not None
    return run


def hashes(run: Run) -> list[str]:
    return [output["output_hash"] for step in STEPS if (output := run.output_of(step)) is not None]


def progress_left(place: Place, homes: Path) -> list[str]:
    """Return what is left of progress, in the store and in any home."""
    return [*Store(place, homes).keys("progress/"), *(str(path) for path in homes.rglob("progress/*/*"))]


@pytest.mark.parametrize("same_home", [True, False])
def test_two_runs_at_once_on_one_home_or_one_bucket_both_end_right(same_home: bool, place: Place, tmp_path: Path) -> None:
    gate, ran = threading.Barrier(2), {}

    def run(name: str) -> None:
        ran[name] = do_run(place, tmp_path / ("home" if same_home else f"home-{name}"), name, meet=lambda: gate.wait(300))

    threads = [threading.Thread(target=run, args=(name,)) for name in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.name for each in Runs(Store(place, tmp_path / "third")).all()) == ["1", "2"]
    alone = do_run(tmp_path / "alone", tmp_path / "alone", "0")
    for each in ran.values():
        assert each.status == "finished"
        assert [attempt.step for attempt in each.attempts] == list(STEPS)
        assert hashes(each) == hashes(alone)
    assert progress_left(place, tmp_path) == []


def test_after_a_machine_was_lost_the_retry_on_an_empty_one_goes_on_from_the_last_saved_progress(
    aws: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = "s3://shop/chess-grpo"
    with pytest.raises(Lost):
        do_run(place, tmp_path / "one", "1", lose=("finetune", 3))
    shutil.rmtree(tmp_path / "one")
    run = do_run(place, tmp_path / "two", "1")
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("from")] == ["from 0", "from 0", "from 3", "from 0"]
    assert Runs(Store(place, tmp_path)).close_gone() == []
    states = [(attempt.step, attempt.number, attempt.status) for attempt in read(place, tmp_path, "1").attempts]
    tries = [("pretrain", 0, "finished"), ("finetune", 0, "killed"), ("pretrain", 1, "finished"), ("finetune", 1, "finished")]
    assert states == [*tries, ("end", 0, "finished")]
    assert run.status == "finished"
    assert hashes(run) == hashes(do_run(tmp_path / "alone", tmp_path / "alone", "0"))
    assert progress_left(place, tmp_path) == []


def test_a_damaged_output_is_computed_again_by_the_same_command_and_nothing_else_is(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = do_run(place, tmp_path / "one", "1")
    output = run.output_of("finetune")
    assert output is not None
    damaged = Store(place, tmp_path / "one")
    (damaged.open(output) / "result").write_text("damaged")
    for copy in damaged._copies.of("finetune", "finetune")[0] if damaged._copies else ():
        damaged._copies._objects.put(f"{copy.place}/result", b"damaged")  # type: ignore[union-attr]
    capsys.readouterr()
    again = do_run(place, tmp_path / "one", "2")
    said = capsys.readouterr().out
    assert said.count("from 0") == 1
    assert "WARNING" in said
    assert (again.status, hashes(again)) == ("finished", hashes(run))
