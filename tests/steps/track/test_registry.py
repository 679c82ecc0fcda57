"""Aliases move as their rule says, each preset has its own, and runs that end together or register twice break none of it."""

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import machine_of
from mlflow.entities import FileInfo
from mlflow.tracking import MlflowClient
from tracked_runs import CANDIDATE_AT, TrackedRun, client_of, forget, told

from grpo.base.door import ForeignError
from grpo.statistics.intervals import Estimate
from steps.run.machine import Machine, sqlite_address
from steps.track import registry
from steps.track.client import TrackingStore
from steps.track.find import NotFoundError, find_policy
from steps.track.outages import TrackingRefusedError
from steps.track.publish import publish_all
from steps.track.registry import Version, why_peak_stays

HELD = Version(preset="p", number=3, run="7", role="peak", output_hash="h", policy_step=150, initial_weights="w", low=0.55, high=0.65)


NEW = replace(HELD, number=4, run="8")


@pytest.mark.parametrize(
    ("offered", "held", "others", "why"),
    [
        (replace(NEW, low=0.5501), HELD, [], ""),
        (replace(NEW, low=0.5499), HELD, [], "version 3, with the same initial policy, has an equal or better lower bound"),
        (NEW, HELD, [], "version 3, with the same initial policy, has an equal or better lower bound"),
        (replace(NEW, low=None), HELD, [], "version 3, with the same initial policy, has an equal or better lower bound"),
        (replace(NEW, low=0.1), replace(HELD, low=None), [], ""),
        (replace(NEW, low=None), replace(HELD, low=None), [], "version 4 has played no games"),
        (replace(NEW, low=None, initial_weights="x"), HELD, [], ""),
        (replace(NEW, initial_weights="x", number=2), HELD, [], "version 3 is newer, and has another initial policy"),
        (NEW, None, [], ""),
        # A1: a run from another start lay between, and a collapsed run took the alias.
        (replace(NEW, low=0.08, high=0.21), None, [], "version 4 plays worse than its initial policy"),
        (
            replace(NEW, low=0.3, high=0.7),
            replace(HELD, initial_weights="x"),
            [HELD],
            "version 3, with the same initial policy, has an equal or better lower bound",
        ),
        (replace(NEW, low=0.6, high=0.7), replace(HELD, initial_weights="x"), [HELD], ""),
    ],
)
def test_peak_goes_to_the_best_of_one_start_and_to_the_newest_of_several_and_never_to_a_policy_that_is_worse_than_its_start(
    offered: Version, held: Version | None, others: list[Version], why: str
) -> None:
    of_held = [held] if held is not None and held.initial_weights == offered.initial_weights else []
    assert why_peak_stays(offered, held, [*of_held, *others, offered]) == why


@pytest.fixture
def machine(tmp_path: Path, give_tables: Callable[[Path], Path]) -> Machine:
    home = give_tables(tmp_path / "home")
    return machine_of(home, sqlite_address(home / "mlflow.db"))


@pytest.fixture(autouse=True)
def models_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.track import mlflow_model

    def save_files(path: Path, **_: Any) -> None:
        path.mkdir()
        (path / "MLmodel").write_text("")

    monkeypatch.setattr(mlflow_model, "save_model", save_files)


@pytest.fixture
def finished(machine: Machine) -> Callable[..., TrackedRun]:
    """Return what publishes a run that has finished, with what its `select` decided."""
    names = iter("123456789")

    def make(*, preset: str = "default", **decided: Any) -> TrackedRun:
        run = TrackedRun(machine, next(names), preset=preset)
        run.select(**decided)
        assert run.publish() == ""
        return run

    return make


def peak_at(low: float) -> Estimate:
    return Estimate(value=0.61, low=low, high=0.6123)


def named(name: str, machine: Machine, preset: str = "default") -> Version:
    version = registry.named(name, machine)[preset]
    assert isinstance(version, Version)
    return version


def held(machine: Machine) -> dict[str, int]:
    found = client_of(machine.home).get_registered_model("chess-policy-default").aliases
    return {name: int(number) for name, number in found.items()}


def test_a_champion_is_replaced_only_by_who_has_beaten_that_one(
    finished: Callable[..., TrackedRun], machine: Machine, request: Any
) -> None:
    finished(candidate_weights="first", promoted=True, champion_step=100, replaces_previous=True)
    first = named("champion", machine)
    assert first.weights == "first"
    finished(candidate_weights="second", replaces_previous=True, previous_weights="another one")
    finished(candidate_weights="third", replaces_previous=False, previous_weights="first")
    assert named("champion", machine) == first
    finished(candidate_weights="fourth", replaces_previous=True, previous_weights="first")
    assert held(machine)["champion"] == 8


def test_a_champion_that_is_the_runs_start_is_replaced_by_who_has_beaten_the_start(
    finished: Callable[..., TrackedRun], machine: Machine
) -> None:
    finished(promoted=False, champion_step=0, initial_weights="start", candidate_weights="no-better")
    assert named("champion", machine).weights == "start"
    finished(promoted=False, champion_step=0, initial_weights="start", candidate_weights="no-better-either")
    assert held(machine)["champion"] == 2
    finished(promoted=True, champion_step=100, initial_weights="start", candidate_weights="better")
    assert named("champion", machine).weights == "better"
    finished(promoted=True, champion_step=100, initial_weights="start", candidate_weights="has-not-played-it")
    assert named("champion", machine).weights == "better"


def test_a_start_that_stays_champion_is_registered_as_what_it_is(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    finished(promoted=False, champion_step=0, candidate_weights="candidate", initial_weights="start")
    champion, peak = named("champion", machine), named("peak", machine)
    assert (champion.policy_step, champion.weights, champion.low) == (0, "start", None)
    assert (peak.policy_step, peak.weights, peak.low) == (CANDIDATE_AT, "candidate", pytest.approx(0.7107, abs=1e-4)), "not the start"


def test_a_peak_is_compared_with_peaks_of_its_own_start_and_with_no_champion(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    for start, low in (("one", 0.6), ("other", 0.55), ("other", 0.5)):
        finished(initial_weights=start, peak=peak_at(low))
    assert named("peak", machine).low == 0.55, "the better one of the newer start"
    assert [peak.low for peak in registry._peaks_of("other", "default", client_of(machine.home))] in ([0.55, 0.5], [0.5, 0.55])


def test_a_run_of_another_preset_takes_no_alias_and_readers_tell_them_apart(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    runs = {preset: finished(preset=preset, peak=peak_at(low)) for preset, low in (("default", 0.5), ("smoke", 0.6))}
    for preset, run in runs.items():
        peak, champion = (named(name, machine, preset) for name in ("peak", "champion"))
        assert [(each.number, each.role, each.run) for each in (peak, champion)] == [(1, "peak", run.name), (2, "champion", run.name)]
        assert named("v2", machine, preset) == champion
        assert champion.output_hash == (run.run.output_of("select") or {})["output_hash"]
    assert registry.named("v9", machine) == {}
    assert sorted(registry.newest_versions(machine)) == ["default/v1", "default/v2", "smoke/v1", "smoke/v2"]
    with pytest.raises(NotFoundError, match=r"is called 'v9'; there is \w+/v\d, "):
        find_policy("v9", machine)


def test_where_there_is_no_store_there_is_nothing_and_asking_makes_none(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, sqlite_address(tmp_path / "mlflow.db"))
    assert registry.named("champion", machine) == {}
    assert registry.newest_versions(machine) == []
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_registered_again_has_its_versions_once(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    run = finished()
    before = told(machine.home)
    forget(run)
    assert run.publish() == ""
    assert told(machine.home) == before
    assert publish_all(machine) == {}, "all is logged"
    assert registry.named("v3", machine) == {}


def test_runs_that_are_logged_together_are_registered_in_the_order_in_which_they_began(machine: Machine) -> None:
    for name in ("9", "10"):
        TrackedRun(machine, name).select()
    assert publish_all(machine) == {"9": "", "10": ""}
    assert (named("v1", machine).run, named("v3", machine).run) == ("9", "10")


def test_of_two_homes_that_register_a_policy_at_once_one_version_is_left(
    finished: Callable[..., TrackedRun], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12: both have looked before either has registered."""
    run, search, is_blind = finished(), MlflowClient.search_model_versions, [True, True]
    before = told(machine.home)
    forget(run)
    monkeypatch.setattr(MlflowClient, "search_model_versions", lambda *given: [] if is_blind and is_blind.pop() else search(*given))
    is_blind[:] = [True]
    assert run.publish() == ""
    assert told(machine.home) == before
    assert [version.version for version in client_of(machine.home).search_model_versions()] in ([1, 2], [2, 1])


# What others may have written.


FOREIGN_TAGS: tuple[dict[str, Any], ...] = (
    {"files": "/../../../precious"},
    {"run": "../precious"},
    {"role": "../precious"},
    {"output_hash": "../precious"},
    {"policy_step": -1},
    {"policy_step": "1"},
    {"low": "high"},
    {"more": 1},
    {"files": "none"},
)


def test_a_tag_that_this_code_did_not_write_leads_nowhere(finished: Callable[..., TrackedRun], machine: Machine) -> None:
    """R2b: a tag became part of a path that is deleted before anything is verified."""
    finished()
    (precious := machine.home.parent / "precious").mkdir()
    (precious / "file").write_text("work of years")
    client = client_of(machine.home)
    written = client.get_model_version("chess-policy-default", "2").tags[registry._POLICY]
    for changed in FOREIGN_TAGS:
        # As everybody with an account can.
        facts = {name: fact for name, fact in (json.loads(written) | changed).items() if fact != "none"}
        client.set_model_version_tag("chess-policy-default", "2", registry._POLICY, json.dumps(facts))
        for name in ("champion", "v2"):
            with pytest.raises(ForeignError, match="version 2 of chess-policy-default in the registry was not written by this code"):
                find_policy(name, replace(machine, store=""))
        assert named("peak", machine).number == 1, "others are not touched by it"
    assert (precious / "file").read_text() == "work of years"


def test_no_path_below_the_home_is_left_even_by_a_version_that_passed_the_door(machine: Machine) -> None:
    (machine.home / "registered").mkdir()
    (machine.home / "registered" / f"p-v3-{'0' * 12}").symlink_to("/")
    with pytest.raises(ForeignError, match="is outside of"):
        registry.fetch(replace(HELD, files="0" * 64), machine)


@pytest.mark.parametrize("made_by", ["hand", "other code"])
def test_an_alias_that_a_foreign_version_has_stays_with_it_and_a_model_with_a_strange_name_is_passed_over(
    made_by: str, finished: Callable[..., TrackedRun], machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of(machine.home)
    for model in ("chess-policy-default", "chess-policy-", "chess-policy-.. x"):
        client.create_registered_model(model)
        version = client.create_model_version(model, "file:///somewhere").version
        client.set_registered_model_alias(model, "champion", version)
        if made_by != "hand":
            client.set_model_version_tag(model, version, "chess_grpo.policy", '{"weights": 3}')
    finished()
    assert (
        "registry: default/champion stays: version 1 of chess-policy-default in the registry was not written by" in capsys.readouterr().out
    )
    assert held(machine) == {"champion": 1, "peak": 2}
    assert registry.named("champion", machine).keys() == {"default"}
    assert "the registered model 'chess-policy-.. x' was not written by this code" in capsys.readouterr().err
    with pytest.raises(ForeignError, match="version 1 of chess-policy-default"):
        find_policy("champion", machine)


def test_a_file_that_a_store_names_outside_of_its_folder_is_not_written(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """R2b: the listing of a store, or the keys of a bucket, are as foreign as its tags."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    version = replace(HELD, files="0" * 64, source=(machine.home / "files").as_uri())
    (machine.home / "files" / "artifacts").mkdir(parents=True)
    for listed in ("../evil", "/evil", "policy/../../evil", "policy\\evil", ""):
        monkeypatch.setattr(LocalArtifactRepository, "list_artifacts", lambda *_, name=listed: [FileInfo(name, is_dir=False, file_size=1)])
        with pytest.raises(ForeignError, match="the list of files in a registered version was not written by this code"):
            registry.fetch(version, machine)
    monkeypatch.setattr(LocalArtifactRepository, "list_artifacts", lambda *_: [FileInfo("a", is_dir=True, file_size=None)])
    with pytest.raises(ForeignError, match="list of a names a, which is outside of that folder"):
        registry.fetch(version, machine)
    assert not list(machine.home.parent.rglob("evil"))


@pytest.mark.parametrize(
    ("store", "place", "is_taken"),
    [
        ("http://mlflow.org:5000", "mlflow-artifacts:/1/artifacts", True),
        ("http://mlflow.org:5000", "mlflow-artifacts://mlflow.org:5000/1/artifacts", True),
        ("http://mlflow.org:5000", "s3://bucket/1/artifacts", True),
        ("http://mlflow.org:5000", "mlflow-artifacts://elsewhere.org/1", False),
        ("http://mlflow.org:5000", "http://elsewhere.org/1", False),
        ("http://mlflow.org:5000", "file:///home/me/.ssh", False),
        ("http://mlflow.org:5000", "/home/me/.ssh", False),
        ("http://mlflow.org:5000", "sftp://me@elsewhere.org/1", False),
        ("http://localhost:5000", "file:///home/me/mlartifacts", True),
        ("sqlite:////home/me/mlflow.db", "file:///home/me/mlartifacts", True),
        ("sqlite:////home/me/mlflow.db", "file://elsewhere.org/mlartifacts", False),
        ("sqlite:////home/me/mlflow.db", "http://elsewhere.org/1", False),
    ],
)
def test_a_server_names_no_folder_of_this_machine_and_no_other_host(store: str, place: str, is_taken: bool) -> None:
    """R2a, R2b: the account goes to the address that it was given for, and files stay where they are."""
    with nullcontext() if is_taken else pytest.raises(TrackingRefusedError, match="as the place of files"):
        TrackingStore(store).refuse_foreign_place(place)


def test_of_two_runs_that_end_together_neither_takes_what_the_other_has_won(
    finished: Callable[..., TrackedRun], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, made = TrackedRun.publish, []
    monkeypatch.setattr(TrackedRun, "publish", lambda run: made.append(run) or "")
    for low in (0.6, 0.5, 0.55):
        finished(peak=peak_at(low), replaces_previous=True, previous_weights="of nobody")
    threads = [threading.Thread(target=publish, args=(run,)) for run in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert named("peak", machine).low == 0.6
    assert named("champion", machine).number == 2


def test_two_first_runs_make_one_experiment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = TrackingStore(machine.tracking_uri)
    other, answers = TrackingStore(machine.tracking_uri), [None]
    found = other.client.get_experiment_by_name
    monkeypatch.setattr(other.client, "get_experiment_by_name", lambda name: answers.pop() if answers else found(name))
    assert other.experiment == tracking.experiment
