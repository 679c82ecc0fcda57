"""What is exported is published on the hub as it lies in the folder; a failure names its remedy, keeps the folder and tells no token."""

from collections.abc import Iterator
from pathlib import Path

import chess
import pytest
from fake_hub import TOKEN, FakeHub, fake_hub
from made_boards import write_boards

from grpo.base.files import file_hashes, write_json
from steps.cli.main import main
from steps.export.hub import front_matter
from steps.step_io.names import REPORT

pytest.importorskip("huggingface_hub")
NAME = "somebody/boards"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
        yield found


@pytest.fixture
def dataset(tmp_path: Path, epd_text: str) -> Path:
    folder = tmp_path / "boards"
    folder.mkdir()
    write_boards(folder, [chess.Board.from_epd(line)[0] for line in epd_text.splitlines()[::40][:20]], num_train=15)
    write_json(folder / REPORT, {"used_games": 1, "sources": {"engine": 20}})
    return folder


def exported(dataset: Path, *options: str) -> int:
    return main(["boards", "export", str(dataset), str(dataset.parent / "out"), *options])


def test_the_hub_gets_the_folder_as_it_is_and_the_second_time_with_the_card_as_edited(hub: FakeHub, dataset: Path) -> None:
    assert exported(dataset, "--push", NAME, "--private", "--license", "cc0-1.0") == 0
    out = dataset.parent / "out"
    on_hub = hub.files[f"datasets/{NAME}"]
    assert {name: on_hub[name] for name in on_hub} == {name: (out / name).read_bytes() for name in file_hashes(out)}
    assert hub.repositories[f"datasets/{NAME}"]["visibility"] == "private"
    card = on_hub["README.md"].decode()
    assert card.startswith("---\n")
    assert 'license: "cc0-1.0"' in card
    (out / "README.md").write_text(f"{card}\nMore words.\n")
    assert exported(dataset, "--push", NAME) == 0
    assert hub.files[f"datasets/{NAME}"]["README.md"].endswith(b"\nMore words.\n")


@pytest.mark.parametrize(
    ("refusal", "breaks_at", "why"),
    [
        (401, "", "does not accept the token"),
        (403, "", "the token has no right to write to somebody/boards"),
        (503, "", "it answered 503"),
        (0, "/repos/create", "the connection broke"),
        (0, "/commit/", "the connection broke"),
    ],
)
def test_a_failure_keeps_the_folder_and_names_reason_and_command(
    refusal: int, breaks_at: str, why: str, hub: FakeHub, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refusal, hub.breaks_at = refusal, breaks_at
    assert exported(dataset, "--push", NAME) == 1
    told = capsys.readouterr()
    assert why in told.err
    assert "The exported folder is whole and stays" in told.err
    assert "Go on with: " in told.err
    assert f"chess-grpo boards export {dataset} {dataset.parent / 'out'} --push {NAME}" in told.err.replace("'", "")
    assert TOKEN not in told.err + told.out
    hub.refusal, hub.breaks_at = 0, ""
    assert exported(dataset, "--push", NAME) == 0
    assert "README.md" in hub.files[f"datasets/{NAME}"]


def test_what_can_be_known_before_is_told_before_the_export(
    hub: FakeHub, dataset: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(dataset, "--push", "boards") == 1
    assert "give USER/NAME" in capsys.readouterr().err
    assert exported(dataset, "--private") == 1
    assert "give --push" in capsys.readouterr().err
    assert exported(dataset, "--license", "my licence") == 1
    assert "not an id of a licence" in capsys.readouterr().err
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert exported(dataset, "--push", NAME) == 1
    assert "set HF_TOKEN, or log in once by `hf auth login`; nothing was exported" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_is_not_published(hub: FakeHub, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(dataset) == 0
    (dataset.parent / "out" / "notes.txt").write_text("mine")
    assert exported(dataset, "--push", NAME) == 1
    assert "holds something else" in capsys.readouterr().err
    assert not hub.files


def test_the_metadata_are_yaml_and_leave_out_what_is_empty() -> None:
    yaml = pytest.importorskip("yaml")
    facts = {"license": "mit", "tags": ["a: b", "#c"], "model-index": [{"name": 'quote " here', "results": [{"value": 0.5}]}]}
    assert yaml.safe_load(front_matter({**facts, "base_model": "", "metrics": []}).split("---\n")[1]) == facts
