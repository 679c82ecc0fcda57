"""Outputs by version: whole or not there, verified, never deleted."""

import shutil
from pathlib import Path

import pytest

from grpo.base.files import CorruptError
from steps.store.outputs import StepOutput, Store


def written(store: Store, text: str = "content") -> StepOutput:
    with store.writing("pretrain", "v1", {"parts": {"seed": 0}}) as folder:
        (folder / "a.txt").write_text(text)
    found = store.find("pretrain", "v1")
    assert found is not None
    return found


def test_what_was_written_is_found_by_its_version_and_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path)
    output = written(store)
    assert (output["step"], output["version"], output["reused"]) == ("pretrain", "v1", True)
    assert (store.open(output) / "a.txt").read_text() == "content"
    assert store.manifest(output)["parts"] == {"seed": 0}
    assert store.find("pretrain", "v2") is None
    assert store.find("baseline", "v1") is None


def test_equal_content_has_an_equal_hash_and_other_content_another(tmp_path: Path) -> None:
    first, same, other = (written(Store(tmp_path / name), text)["output_hash"] for name, text in (("a", "x"), ("b", "x"), ("c", "y")))
    assert first == same != other


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail() -> None:
        with store.writing("pretrain", "v1", {}) as folder:
            (folder / "a.txt").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.find("pretrain", "v1") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_changed_file_is_noticed_by_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    output = written(store)
    (store.folder("pretrain", "v1") / "a.txt").write_text("Content")
    with pytest.raises(CorruptError, match=r"a\.txt is changed"):
        store.find("pretrain", "v1")
    with pytest.raises(CorruptError, match=r"a\.txt is changed"):
        store.open(output)


def test_an_output_made_anew_with_other_content_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = written(store)
    store.discard("pretrain", "v1")
    written(store, "other content")
    with pytest.raises(CorruptError, match="was expected"):
        store.open(old)


def test_a_missing_output_says_where_it_should_be_and_what_to_do(tmp_path: Path) -> None:
    output = StepOutput(step="pretrain", version="v1", output_hash="0", reused=False)
    with pytest.raises(CorruptError, match="CHESS_GRPO_HOME"):
        Store(tmp_path).open(output)


def test_a_discarded_output_is_set_aside_and_not_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2):
        written(store, f"content {number}")
        aside = store.discard("pretrain", "v1")
        assert (aside / "a.txt").read_text() == f"content {number}"
    assert store.find("pretrain", "v1") is None


def received(store: Store, output: StepOutput, source: Path) -> None:
    with store.receiving(output) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)


def test_a_copy_from_elsewhere_is_an_output_like_any_other(tmp_path: Path) -> None:
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    output = written(there)
    assert not here.has(output)
    received(here, output, there.open(output))
    assert here.has(output)
    assert here.manifest(output) == there.manifest(output)


@pytest.mark.parametrize("fault", ["changed", "missing", "added", "another output"])
def test_a_copy_that_is_not_the_output_leaves_nothing(fault: str, tmp_path: Path) -> None:
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    output = written(there)
    folder = there.folder("pretrain", "v1")
    if fault == "changed":
        (folder / "a.txt").write_text("Content")
    elif fault == "missing":
        (folder / "a.txt").unlink()
    elif fault == "added":
        (folder / "b.txt").write_text("")
    else:
        output = StepOutput(**{**output, "output_hash": "0" * 64})
    with pytest.raises(CorruptError, match="was expected" if fault == "another output" else r"[ab]\.txt is"):
        received(here, output, folder)
    assert [path for path in (tmp_path / "here").rglob("*") if path.is_file()] == []


def test_what_is_here_with_another_content_is_set_aside_only_for_a_good_copy(tmp_path: Path) -> None:
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    wanted, own = written(there), written(here, "made here")
    folder = there.folder("pretrain", "v1")
    (folder / "a.txt").write_text("spoilt on the way")
    with pytest.raises(CorruptError):
        received(here, wanted, folder)
    assert here.has(own)
    (folder / "a.txt").write_text("content")
    received(here, wanted, folder)
    assert here.has(wanted)
    aside = here.folder("pretrain", "v1").with_name("v1.set-aside-1")
    assert (aside / "a.txt").read_text() == "made here"
