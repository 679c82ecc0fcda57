"""A run is gone on from only where its boards and network would be made alike; each difference is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import write_manifest
from grpo.engine.identity import EngineIdentity
from grpo.settings.grpo import GrpoConfig
from grpo.settings.roles import may_change, settings_read_by
from grpo.settings.tree import Settings, read_settings
from steps.pipeline.job import Job, ResumeOrigin
from steps.pipeline.resume import ResumeError, refuse_unlike
from steps.pipeline.resume_changes import Change, Now, changes_since, recorded
from steps.pipeline.training import finetune
from steps.store import external_inputs
from steps.store.outputs import StepOutput

ENGINE = EngineIdentity(name="Scripted 1", sha256="0" * 64)
OTHER_ENGINE = EngineIdentity(name="Scripted 2", sha256="1" * 64)
CODE = {"commit": "abc", "is_dirty": False, "lock": "l1", "language_lock": "e1"}
ORIGIN = ResumeOrigin(name="peak", mlflow_run="m", metaflow_run="7", policy_step=4, outputs={})


@pytest.fixture
def settings(games_text: str, tmp_path: Path) -> Settings:
    """Return settings with games and something that judges."""
    (tmp_path / "games.pgn").write_text(games_text)
    (tmp_path / "judges.epd").write_text("8/5k2/8/8/3R4/8/5K2/8 w - -\n")
    return of(tmp_path / "games.pgn", exclude=[str(tmp_path / "judges.epd")])


def of(*files: Path, **boards: Any) -> Settings:
    """Return settings with these files."""
    return read_settings(json.dumps({"preset": "test", "boards": {"source": "files", "files": list(map(str, files)), **boards}}))


@pytest.fixture
def changed(settings: Settings) -> Callable[..., list[Change]]:
    """Return what compares a run of `settings` with others."""
    return comparing(settings)


def comparing(settings: Settings) -> Callable[..., list[Change]]:
    """Return what compares a run of these settings with others."""
    made = {
        "join_boards": {
            "settings": settings_read_by("build_boards", settings),
            "inputs": external_inputs.source_inputs(settings, ENGINE) | {"unit-0000": "hash"},
        },
        "check_boards": {"settings": settings_read_by("check_boards", settings), "inputs": {}},
        "pretrain": {"settings": settings_read_by("pretrain", settings), "inputs": {"device": "cpu a"}},
        "calibrate": {"settings": settings_read_by("calibrate", settings), "inputs": external_inputs.opening_inputs(settings)},
        "baseline": {"settings": settings_read_by("baseline", settings), "inputs": external_inputs.opening_inputs(settings)},
        "finetune": {"settings": settings_read_by("finetune", settings), "inputs": {"engine": str(ENGINE)}},
        "select": {"settings": settings_read_by("select", settings), "inputs": external_inputs.opening_inputs(settings)},
    }
    # As they come from the disk.
    manifests = json.loads(json.dumps({step: {"parts": parts, "code": CODE} for step, parts in made.items()}))

    def compare(
        now: Settings,
        engine: EngineIdentity = ENGINE,
        *,
        without: str = "",
        trained_with: EngineIdentity = ENGINE,
        action_table: str = "a" * 64,
        device: str = "cpu a",
        code: dict[str, Any] = CODE,
    ) -> list[Change]:
        manifests["finetune"]["parts"]["inputs"]["engine"] = str(trained_with)
        given = {step: manifest for step, manifest in manifests.items() if step != without}
        return changes_since(given, "a" * 64, Now(settings=now, engine=engine, code=code, device=device, action_table=action_table))

    return compare


@pytest.fixture
def refused(changed: Callable[..., list[Change]]) -> Callable[..., str]:
    """Return what resumes a run of `settings` and returns the message, "" if it may."""

    def resume(*given: Any, allowed: tuple[str, ...] = (), **facts: Any) -> str:
        try:
            refuse_unlike(ORIGIN, changed(*given, **facts), allowed)
        except ResumeError as error:
            return str(error)
        return ""

    return resume


def shown(changes: list[Change]) -> list[str]:
    return [str(change) for change in changes]


def test_where_the_files_lie_and_over_how_many_tasks_they_are_spread_makes_no_difference(
    settings: Settings, refused: Callable[..., str], tmp_path: Path
) -> None:
    assert refused(settings) == ""
    there = tmp_path / "there"
    there.mkdir()
    for name in ("games.pgn", "judges.epd"):
        shutil.move(tmp_path / name, there)
    assert refused(of(there / "games.pgn", exclude=[str(there / "*.epd")], num_tasks=1)) == ""


def test_how_a_policy_is_trained_and_measured_may_differ_and_is_told(settings: Settings, changed: Callable[..., list[Change]]) -> None:
    ladder = {"num_rung_pairs": 7, "num_calibration_pairs": 5}
    now = with_values(
        settings, grpo={"learning_rate": 2e-3}, selection={"num_candidates": 1}, evaluation={"max_plies": 50, "ladder": ladder}
    )
    changes = changed(now, device="cpu b", code={"commit": "def", "is_dirty": True, "lock": "l2"})
    assert shown(changes) == [
        "code.commit: origin 'abc', now 'def'",
        "code.lock: origin 'l1', now 'l2'",
        "device: origin 'cpu a', now 'cpu b'",
        "evaluation.ladder.num_calibration_pairs: origin 2, now 5",
        "evaluation.ladder.num_rung_pairs: origin 2, now 7",
        "evaluation.max_plies: origin 60, now 50",
        f"grpo.learning_rate: origin {settings.grpo.learning_rate}, now 0.002",
        "selection.num_candidates: origin 2, now 1",
    ]
    assert not any(change.is_refused for change in changes)
    tags = recorded(changes, ())
    assert tags["chess_grpo.changed.grpo.learning_rate"] == f"{settings.grpo.learning_rate} -> 0.002"
    assert len(tags) == len(changes)


def test_of_a_book_of_openings_the_content_is_compared_and_not_where_it_lies(
    settings: Settings, changed: Callable[..., list[Change]], tmp_path: Path
) -> None:
    books = [tmp_path / name / "book.epd" for name in ("here", "there")]
    for book in books:
        book.parent.mkdir()
        book.write_text("rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq -\n")
    then, now = (with_values(settings, evaluation={"opening_book": str(book)}) for book in books)
    assert comparing(then)(now) == []
    changes = changed(now)
    [digest] = external_inputs.opening_inputs(now).values()
    assert shown(changes) == [f"opening book: origin None, now '{digest}'"]
    assert not changes[0].is_refused


def test_a_run_that_ended_before_selection_is_compared_without_it(settings: Settings, changed: Callable[..., list[Change]]) -> None:
    now = with_values(settings, selection={"num_candidates": 1}, grpo={"num_steps": 9})
    assert shown(changed(now, without="select")) == ["grpo.num_steps: origin 6, now 9"]


OBJECTIVE = {"num_own_moves"}


def test_each_field_of_grpo_either_may_change_or_is_the_objective() -> None:
    assert {name for name in GrpoConfig.model_fields if not may_change(f"grpo.{name}")} == OBJECTIVE


def test_another_objective_is_refused_unless_it_is_allowed_by_name(
    settings: Settings, refused: Callable[..., str], changed: Callable[..., list[Change]]
) -> None:
    now = with_values(settings, grpo={"num_own_moves": 2})
    message = refused(now)
    assert "\n  grpo.num_own_moves" in message
    assert "(--allow objective would let it)" in message
    assert refused(now, allowed=("engine",)) == message
    assert refused(now, allowed=("objective",)) == ""
    assert recorded(changed(now), ("engine", "objective"))["chess_grpo.allowed"] == "objective"


def test_the_message_lists_every_difference_that_is_refused(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    # Golden: what people see.
    now = with_values(
        of(tmp_path / "games.pgn"),
        seed=3,
        policy={"width": 24},
        pretrain={"max_steps": 41},
        values={"mate_band": 0.1},
        evaluation={"heldout_depth": 4, "max_plies": 50},
        grpo={"num_own_moves": 2, "learning_rate": 2e-3},
    )
    judged = external_inputs.source_inputs(settings, ENGINE)["judged positions"]
    assert refused(now, OTHER_ENGINE, action_table="b" * 64) == (
        "--resume-from peak: run 7 was made otherwise, and this may not change (docs/howto.md says what may):\n"
        "  action_table: origin 'aaaaaaaaaaaaaaaa', now 'bbbbbbbbbbbbbbbb'\n"
        "  engine: origin 'Scripted 1 (sha256 0000000000000000)', now 'Scripted 2 (sha256 1111111111111111)'"
        " (--allow engine would let it)\n"
        "  evaluation.heldout_depth: origin 3, now 4\n"
        "  grpo.num_own_moves: origin 1, now 2 (--allow objective would let it)\n"
        f"  judged positions: origin '{judged}', now None\n"
        "  policy.width: origin 16, now 24\n"
        "  pretrain.max_steps: origin 40, now 41\n"
        "  seed: origin 0, now 3\n"
        "  values.mate_band: origin 0.02, now 0.1\n"
        "Give the origin's settings (same preset and overrides), or start without --resume-from"
    )


def test_what_is_allowed_must_be_known_by_name(settings: Settings, refused: Callable[..., str]) -> None:
    message = refused(settings, allowed=("engine", "network"))
    assert message == "--allow engine,network: 'network' is nothing that can be allowed; known: engine, objective"


def test_other_files_are_refused_by_name(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    games, more, judges = (tmp_path / name for name in ("games.pgn", "more.pgn", "judges.epd"))
    shutil.copy(games, more)
    message = refused(of(games, more, exclude=[str(judges)]))
    assert "  file more.pgn: origin None, now '" in message
    assert "games.pgn" not in message
    message = refused(of(more, exclude=[str(judges)]))
    assert "  file games.pgn: origin '" in message
    assert "  file more.pgn: origin None, now '" in message
    judges.write_text("8/5k2/8/8/4R3/8/5K2/8 w - -\n")
    for message in (refused(settings), refused(of(games))):
        assert "  judged positions: origin '" in message
        assert message.count("origin '") == 1
    games.write_text(games.read_text() + "\n")
    assert "\n  file games.pgn: origin '" in refused(settings)


def test_the_name_of_a_file_that_judges_makes_no_difference(settings: Settings, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "judges.epd").rename(tmp_path / "renamed.epd")
    renamed = of(tmp_path / "games.pgn", exclude=[str(tmp_path / "renamed.epd")])
    assert "judged" not in refused(renamed, OTHER_ENGINE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"filters": {"min_rating": 1500}}, "boards.filters.min_rating: origin None, now 1500"),
        ({"shortage": "accept"}, "boards.shortage: origin 'error', now 'accept'"),
        ({"num_units": 3}, "boards.num_units: origin 2, now 3"),
    ],
)
def test_settings_that_make_other_boards_are_refused_by_name(
    change: dict[str, Any], words: str, settings: Settings, refused: Callable[..., str], tmp_path: Path
) -> None:
    assert f"\n  {words}\n" in refused(of(tmp_path / "games.pgn", exclude=[str(tmp_path / "judges.epd")], **change))


def test_another_engine_is_refused_unless_it_is_allowed_by_name(
    settings: Settings, refused: Callable[..., str], changed: Callable[..., list[Change]]
) -> None:
    assert f"  engine: origin {str(ENGINE)!r}, now {str(OTHER_ENGINE)!r} (--allow engine" in refused(settings, OTHER_ENGINE)
    assert refused(settings, OTHER_ENGINE, allowed=("engine",)) == ""
    assert recorded(changed(settings), ("engine", "objective")) == {}, "nothing had to be allowed"
    tags = recorded(changed(settings, OTHER_ENGINE), ("engine",))
    assert tags == {"chess_grpo.changed.engine": f"{str(ENGINE)!r} -> {str(OTHER_ENGINE)!r}", "chess_grpo.allowed": "engine"}


def test_the_engine_that_was_allowed_for_the_origin_is_told_apart_from_that_of_the_boards(
    settings: Settings, changed: Callable[..., list[Change]]
) -> None:
    # The origin went on, by leave, with another engine than the one that made its boards.
    assert shown(changed(settings, OTHER_ENGINE, trained_with=OTHER_ENGINE)) == [
        f"engine: origin {str(ENGINE)!r}, now {str(OTHER_ENGINE)!r}"
    ]
    back = changed(settings, ENGINE, trained_with=OTHER_ENGINE)
    assert shown(back) == [f"engine of finetune: origin {str(OTHER_ENGINE)!r}, now {str(ENGINE)!r}"]


def with_values(settings: Settings, **sections: Any) -> Settings:
    """Return valid settings in which these fields are changed."""
    plain = settings.model_dump(mode="json")
    for name, fields in sections.items():
        plain[name] = {**plain[name], **fields} if isinstance(fields, dict) else fields
        for field, value in fields.items() if isinstance(fields, dict) else ():
            if isinstance(value, dict):
                plain[name][field] = {**settings.model_dump(mode="json")[name][field], **value}
    return Settings.model_validate(plain)


def test_the_version_of_finetune_has_the_checkpoint_that_it_resumes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, inputs = StepOutput(step="pretrain", version="v", output_hash="h", reused=False), []

    def noted(*_: Any, **given: Any) -> StepOutput:
        inputs.append(given["inputs"])
        return output

    monkeypatch.setenv("CHESS_GRPO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("steps.pipeline.here.identify", lambda _: ENGINE)
    monkeypatch.setattr("steps.pipeline.training.run_step", noted)
    for weights in ("one", "other"):
        (folder := tmp_path / weights).mkdir()
        (folder / "weights").write_text(weights)
        write_manifest(folder, {})
        monkeypatch.setattr("steps.pipeline.training.origin_checkpoint", lambda *_, folder=folder: folder)
        job = Job(
            settings=read_settings("test").model_dump(mode="json"),
            code=CODE,
            metaflow_run="8",
            mlflow_run="m",
            is_fresh=False,
            origin=ORIGIN,
        )
        finetune(job, output, output)
    one, other = inputs
    assert {name for name in one if one[name] != other[name]} == {"checkpoint"}
