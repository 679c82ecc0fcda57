"""`peak` stays with the best lower bound of what can be compared, and two runs that end together do not break that."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.tracking.registry import MODEL, Choice, Chosen, Registry, Version, should_have_peak
from steps.tracking.tags import CHILD
from steps.tracking.tracker import Tracker

HELD = Version(number=3, flow_run="f", policy_step=150, initial_weights="w", low=0.55)


@pytest.mark.parametrize(
    ("offered", "held", "moves", "why"),
    [
        (HELD, None, True, "the first one; lower bound 0.5500"),
        (replace(HELD, low=0.5501), HELD, True, "lower bound 0.5501, above the lower bound 0.5500 of version 3"),
        (replace(HELD, low=0.5499), HELD, False, "its lower bound 0.5500 is not below this run's lower bound 0.5499"),
        (HELD, HELD, False, "is not below"),
        (replace(HELD, low=0.1, initial_weights="x"), HELD, True, "version 3, which had it, has another initial policy"),
        (replace(HELD, low=0.1), replace(HELD, initial_weights=None, low=None), True, "does not name its initial policy"),
        (replace(HELD, low=None), HELD, False, "is not below this run's no lower bound"),
        (replace(HELD, low=0.1), replace(HELD, low=None), True, "lower bound 0.1000, above the no lower bound of version 3"),
        (replace(HELD, low=None), replace(HELD, low=None), False, "its no lower bound is not below"),
        (replace(HELD, low=None, initial_weights="x"), HELD, True, "has another initial policy"),
    ],
)
def test_peak_moves_to_the_better_of_comparable_policies_and_to_the_newest_of_others(
    offered: Version, held: Version | None, moves: bool, why: str
) -> None:
    is_moved, reason = should_have_peak(offered, held)
    assert is_moved == moves
    assert why in reason


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Tracker:
    home = give_tables(tmp_path_factory.mktemp("home"))
    machine = Machine(stockfish="", home=home, tracking_uri=f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)
    return Tracker(machine)


@pytest.fixture
def registered(tracker: Tracker, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Version]:
    """Return what registers a policy, by its lower bound; the initial policy is this test's own."""
    run = tracker.start_flow_run(metaflow_run="7", settings={}, tags={}, note="")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "weights").write_text("x")

    def register(low: float | None, step: int = 4) -> Version:
        with tracker.child(run, "select", {}) as child:
            child.file(tmp_path / "policy", "policy")
        return Registry(tracker).register(
            holder=tracker.search(f"tags.`{CHILD}` = '{child.key}'")[0].info.run_id,
            folder="policy",
            flow_run=run,
            policy_step=step,
            initial_weights=request.node.name,
            low=low,
            description="",
        )

    return register


def test_a_later_worse_run_does_not_take_peak_away(tracker: Tracker, registered: Callable[..., Version]) -> None:
    registry = Registry(tracker)
    good = registered(0.55, 150)
    assert registry.offer_peak(good).startswith(f"registry: alias peak set to version {good.number}: ")
    worse = registered(0.53, 200)
    assert registry.offer_peak(worse) == (
        f"registry: alias peak stays at version {good.number}: its lower bound 0.5500 is not below this run's lower bound 0.5300,"
        " against the same initial policy"
    )
    assert registry.named(PEAK) == good
    better = registered(0.56, 250)
    assert registry.offer_peak(better) == (
        f"registry: alias peak set to version {better.number}: lower bound 0.5600, above the lower bound 0.5500 of version {good.number}"
    )
    assert registry.named(PEAK) == better


@pytest.mark.parametrize("lows", [(0.5, 0.6), (0.6, 0.5)])
def test_of_two_runs_that_end_together_the_better_has_peak(
    lows: tuple[float, float], tracker: Tracker, registered: Callable[..., Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, registry = registered(lows[0]), registered(lows[1]), Registry(tracker)
    best = max(one, other, key=lambda version: version.low or 0)
    # Both look before either moves the alias.
    seen = registry.named(PEAK)
    monkeypatch.setattr(Registry, "named", lambda self, alias: seen)
    registry.offer_peak(other)
    registry.offer_peak(one)
    monkeypatch.undo()
    assert registry.named(PEAK) == best


@pytest.mark.parametrize("has_champion", [False, True])
@pytest.mark.parametrize("is_first_earlier", [False, True])
def test_of_two_runs_that_end_together_the_first_is_champion_and_the_other_has_not_beaten_it(
    has_champion: bool, is_first_earlier: bool, tracker: Tracker, registered: Callable[..., Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tracker)
    seen = registered(0.5) if has_champion else None
    if seen is not None:
        registry.give(CHAMPION, seen)
    versions = [registered(0.6), registered(0.6)]
    choice = Choice(policy_step=4, initial_weights="w", low=0.6)
    chosen = Chosen(flow_run="f", description="", peak=choice, champion=choice, is_beaten=True, seen=None if seen is None else seen.number)
    told = []
    for version in versions if is_first_earlier else reversed(versions):  # Both look before either moves the alias.
        with monkeypatch.context() as patched:
            patched.setattr(Registry, "_entered", lambda *_, version=version: version)
            patched.setattr(Registry, "named", lambda self, alias: seen if alias == CHAMPION else None)
            told.append(registry.enter(chosen, holder="", key="")[1])
    assert registry.named(CHAMPION) == versions[0]
    said = f"registry: alias champion set to version {versions[0].number}"
    other = (
        f"registry: alias champion stays at version {versions[0].number}"
        if is_first_earlier
        else f"registry: alias champion set to version {versions[1].number}"
    )
    assert told == ([said, other] if is_first_earlier else [other, said])
    for version in versions:  # The store is this file's, and the next test's champions are none of theirs.
        tracker.client.delete_model_version(MODEL, str(version.number))


def test_who_has_beaten_a_champion_before_it_was_given_the_alias_back_is_no_rival(
    tracker: Tracker, registered: Callable[..., Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, seen, former, later = Registry(tracker), registered(0.5), registered(0.6), registered(0.6)
    monkeypatch.setattr("steps.tracking.registry._TOGETHER_MILLISECONDS", 0)
    choice = Choice(policy_step=4, initial_weights="w", low=0.6)
    chosen = Chosen(flow_run="f", description="", peak=choice, champion=choice, is_beaten=True, seen=seen.number)
    for version in (former, later):
        registry.give(CHAMPION, seen)
        monkeypatch.setattr(Registry, "_entered", lambda *_, version=version: version)
        assert registry.enter(chosen, holder="", key="")[1] == f"registry: alias champion set to version {version.number}"
    assert registry.named(CHAMPION) == later


def test_two_first_runs_make_one_model(tracker: Tracker, registered: Callable[..., Version], monkeypatch: pytest.MonkeyPatch) -> None:
    registered(0.5)
    # Both find that there is no model yet, and the other is first to make it.
    monkeypatch.setattr(tracker.client, "search_registered_models", lambda condition: [])
    version = registered(0.6)
    monkeypatch.undo()
    assert len(tracker.client.search_registered_models(f"name = '{MODEL}'")) == 1
    assert int(tracker.client.get_model_version(MODEL, str(version.number)).tags["chess_grpo.policy_step"]) == version.policy_step


def test_two_first_runs_make_one_experiment(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    home = Path(tracker.uri.removeprefix("sqlite:///")).parent
    machine = Machine(stockfish="", home=home, tracking_uri=tracker.uri, device="cpu", num_threads=1)
    found = MlflowClient.get_experiment_by_name
    answers: list[Any] = [lambda *_: None, found]

    def answer(self: MlflowClient, name: str) -> Any:
        return answers.pop(0)(self, name)

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", answer)
    assert Tracker(machine).experiment == tracker.experiment
    assert not answers


def test_an_alias_moves_when_it_is_given_to_another(tracker: Tracker, registered: Callable[..., Version]) -> None:
    registry = Registry(tracker)
    first, second = registered(None, 4), registered(None, 7)
    for version in (first, second):
        registry.give(CHAMPION, version)
        assert registry.named(CHAMPION) == version


def test_an_alias_that_nobody_has_is_no_version(tracker: Tracker) -> None:
    assert Registry(tracker).named("nobody") is None
