"""The registry's champion is played by whatever would take its place, and gives way only to what was shown to be better than it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import CPU, TINY

from grpo.base.files import read_json, sha256_file, write_json
from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import new_policy
from grpo.policy.files import POLICY, WEIGHTS
from grpo.settings.tree import read_settings
from steps.bodies import select as selecting
from steps.pipeline import evaluation
from steps.pipeline.job import Job
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.names import DECISIONS, PGN, REPORT
from steps.step_io.work import Work
from steps.store.outputs import StepOutput, Store
from steps.tracking.registry import Registry, Version
from steps.tracking.tracker import Tracker


class Runs:
    """Runs of `select` on this machine, whose games are written: what a decision says is given, and whom it was asked to play is kept."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine, self.store, self.tracker = machine, Store(machine.home), Tracker(machine)
        self.registry = Registry(self.tracker)
        self.rivals: list[Path | None] = []
        """Of each selection that was made, not taken from the store: the previous champion's folder."""
        self._patch = monkeypatch

    def select(self, finetuned: str, *, replaces: bool, seed: int = 1, num_candidates: int = 2, facts: dict[str, Any] | None = None) -> Any:
        """Return the output of a run whose checkpoints are named so, and whose champion's weights have this seed."""

        def body(settings: Any, *, previous: Path | None, work: Work, **_: Any) -> None:
            self.rivals.append(previous)
            for part in (CHAMPION, PEAK):
                (work.folder / part).mkdir()
                save_policy(work.folder / part, new_policy(TINY, seed=seed, device=CPU), TINY)
            if facts is not None:
                write_json(work.folder / CHAMPION / POLICY, read_json(work.folder / CHAMPION / POLICY) | facts)
            decision = {
                "verdict": "better" if replaces else "no improvement shown",
                "replaces_previous": replaces,
                "champion_step": seed,
                "peak_step": seed,
                "peak_low": 0.5 + seed / 1_000,
                "initial_weights": "w",
                "sentence": "it was asked for",
                "candidate_step": seed,
                "claims": [{"interval": {"score": 0.6, "low": 0.55, "high": 0.65}}],
                "ladder": {"text": "+0 Elo"},
                "ladder_initial": {"text": "+0 Elo"},
                "ladder_gain": {"finding": "no difference shown"},
            }
            write_json(work.folder / REPORT, decision)
            write_json(work.folder / DECISIONS, {})
            (work.folder / PGN).write_text("")

        self._patch.setattr(selecting, "select_champion", body)
        settings = read_settings("test").model_dump(mode="json")
        settings["selection"]["num_candidates"] = num_candidates
        run = self.tracker.start_flow_run(metaflow_run=finetuned, settings={}, tags={}, note="")
        job = Job(
            settings=settings,
            code={"commit": "abc", "is_dirty": False, "lock": "l"},
            metaflow_run=finetuned,
            mlflow_run=run,
            is_fresh=False,
            origin=None,
        )
        boards, pretrained, calibrated = (self.output(step, step) for step in ("join_boards", "pretrain", "calibrate"))
        outputs = {"boards": boards, "pretrained": pretrained, "calibrated": calibrated, "finetuned": self.output("finetune", finetuned)}
        return evaluation.select(job, evaluation.SelectionOutputs(**outputs))

    def output(self, step: str, content: str) -> StepOutput:
        """Return an output with this content."""
        found = self.store.find(step, content)
        if found is None:
            with self.store.writing(step, content, {}) as folder:
                (folder / "content").write_text(content)
            found = self.store.find(step, content)
        assert found is not None
        return found

    def champion(self) -> Version:
        """Return the version that has the alias."""
        found = self.registry.named(CHAMPION)
        assert found is not None
        return found

    def champion_folder(self, selected: StepOutput) -> Path:
        """Return where the champion of an output is."""
        return self.store.folder("select", selected["version"]) / CHAMPION

    def spoil(self, selected: StepOutput) -> None:
        """Make the champion's weights unreadable, here and in the tracking store."""
        digest = sha256_file(self.champion_folder(selected) / WEIGHTS)
        for weights in self.machine.home.rglob(WEIGHTS):
            if weights.parent.name == CHAMPION and sha256_file(weights) == digest:
                weights.write_bytes(b"spoilt")


@pytest.fixture
def runs(give_tables: Callable[[Path], Path], stockfish: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    give_tables(tmp_path)
    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path))
    monkeypatch.setenv("CHESS_GRPO_STOCKFISH", stockfish)
    monkeypatch.setenv("CHESS_GRPO_DEVICE", "cpu")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Runs(Machine.here(), monkeypatch)


def test_where_there_is_no_champion_the_first_run_gives_one_whatever_was_shown(runs: Runs) -> None:
    runs.select("one", replaces=False, seed=7)
    assert runs.rivals == [None]
    assert (runs.champion().policy_step, runs.champion().initial_weights) == (7, "w")
    assert runs.registry.named(PEAK) is not None


def test_the_champion_of_another_run_is_the_one_to_beat(runs: Runs) -> None:
    first = runs.select("one", replaces=True, seed=1)
    second = runs.select("two", replaces=True, seed=2)
    assert runs.rivals == [None, runs.champion_folder(first)]
    assert runs.champion().policy_step == 2
    weights = [sha256_file(runs.champion_folder(first) / WEIGHTS), ""]
    assert [runs.store.manifest(output)["parts"]["inputs"]["previous"] for output in (second, first)] == weights


def test_who_became_champion_while_others_played_keeps_the_alias(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile = runs.tracker.start_flow_run(metaflow_run="other", settings={}, tags={}, note="")
    real = evaluation._incumbent

    def incumbent(*arguments: Any, **named: Any) -> Any:
        found = real(*arguments, **named)
        # Another run ends between the look and the verdict.
        version = runs.registry.register(
            holder=meanwhile, folder=CHAMPION, flow_run=meanwhile, policy_step=9, initial_weights="x", low=None, description=""
        )
        runs.registry.give(CHAMPION, version)
        return found

    monkeypatch.setattr(evaluation, "_incumbent", incumbent)
    runs.select("one", replaces=True, seed=1)
    assert runs.champion().policy_step == 9


def test_a_champion_whose_files_are_gone_is_not_played_and_stays_unbeaten(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.spoil(runs.select("one", replaces=True, seed=1))
    capsys.readouterr()
    second = runs.select("two", replaces=True, seed=2)
    assert runs.rivals == [None, None]
    out = capsys.readouterr().out
    assert "select: WARNING: the registry's champion cannot be played, so it stays, unbeaten" in out
    assert WEIGHTS in out
    assert runs.store.manifest(second)["parts"]["inputs"]["previous"] == "cannot be played"
    assert runs.champion().policy_step == 1


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"action_table": "0" * 64}, "action_table is 000000000000"),
        ({"policy": {"kind": "network", "width": 24, "hidden_width": 8}}, "size mismatch"),
    ],
    ids=["other action table", "other network"],
)
def test_a_champion_that_this_code_cannot_use_is_not_played(
    facts: dict[str, Any], why: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.select("one", replaces=True, facts=facts)
    capsys.readouterr()
    runs.select("two", replaces=True, seed=2)
    assert runs.rivals == [None, None]
    out = capsys.readouterr().out
    assert "select: WARNING: the registry's champion cannot be played" in out
    assert why in out
    assert runs.champion().policy_step == 1


def test_a_champion_that_is_only_in_the_tracking_store_is_fetched_and_played(runs: Runs) -> None:
    first = runs.select("one", replaces=True, seed=1)
    digest = sha256_file(runs.champion_folder(first) / WEIGHTS)
    runs.store.discard("select", first["version"])
    runs.select("two", replaces=False, seed=2)
    [none, rival] = runs.rivals
    assert none is None
    assert rival is not None
    assert sha256_file(rival / WEIGHTS) == digest
