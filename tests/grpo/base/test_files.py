"""Hashes that notice every change, and folders that appear whole or not at all."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from grpo.base.files import (
    ASIDE,
    MANIFEST,
    CorruptError,
    append_line,
    atomic_folder,
    file_hashes,
    read_json,
    replace_file,
    sha256_file,
    sha256_json,
    sha256_text,
    verified_manifest,
    write_json,
    write_manifest,
)

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""SHA-256 of "abc", FIPS 180-2, appendix B.1."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of four files with a manifest, one of them a page that differs from run to run."""
    folder = tmp_path / "made"
    for place in ("sub", f"sub/{ASIDE}/docs"):
        (folder / place).mkdir(parents=True)
    (folder / "a.txt").write_text("abc")
    (folder / "b.bin").write_bytes(bytes(range(256)))
    (folder / "sub" / MANIFEST).write_text("{}")
    (folder / "sub" / ASIDE / "docs" / "page").write_text("10:15:02")
    write_manifest(folder, {"kind": "test", "rows": 3})
    return folder


def test_equal_json_has_one_hash_and_equal_bytes_whatever_the_order_of_its_keys(tmp_path: Path) -> None:
    value, other = {"a": 1, "b": {"c": 2.5, "d": [None, "é"]}}, {"b": {"d": [None, "é"], "c": 2.5}, "a": 1}
    assert sha256_json(value) == sha256_json(other)
    write_json(tmp_path / "1.json", value)
    write_json(tmp_path / "2.json", other)
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    assert read_json(tmp_path / "1.json") == value
    for refuses in (sha256_json, partial(write_json, tmp_path / "x.json")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            refuses([float("nan")])


def test_a_manifest_names_every_file_but_itself_with_its_hash(folder: Path) -> None:
    manifest = read_json(folder / MANIFEST)
    assert manifest["files"] | manifest["aside"] == file_hashes(folder)
    assert sorted(manifest["files"]) == ["a.txt", "b.bin", f"sub/{MANIFEST}"]
    assert manifest["files"]["a.txt"] == sha256_text("abc") == sha256_file(folder / "a.txt") == ABC
    assert manifest["aside"] == {f"sub/{ASIDE}/docs/page": sha256_text("10:15:02")}
    assert (manifest["kind"], manifest["rows"]) == ("test", 3)
    assert verified_manifest(folder) == manifest


def test_the_output_hash_depends_on_the_files_and_not_on_the_facts_nor_on_what_is_aside(folder: Path) -> None:
    before = read_json(folder / MANIFEST)["output_hash"]
    (folder / "sub" / ASIDE / "docs" / "page").write_text("10:15:03")
    assert write_manifest(folder, {"kind": "other"})["output_hash"] == before
    (folder / "a.txt").rename(folder / "c.txt")
    assert write_manifest(folder, {"kind": "test", "rows": 3})["output_hash"] != before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "b.bin").write_bytes(bytes([1, *range(1, 256)])), "b.bin is changed since it was written"),
        (lambda folder: (folder / "sub" / ASIDE / "docs" / "page").write_text("10:15:03"), "page is changed since it was written"),
        (lambda folder: (folder / "a.txt").unlink(), "a.txt is missing"),
        (lambda folder: (folder / "new").write_text(""), "new is not in the manifest"),
        (lambda folder: (folder / MANIFEST).unlink(), f"{MANIFEST} is missing or unreadable"),
        (lambda folder: (folder / MANIFEST).write_text("<html>"), f"{MANIFEST} is damaged"),
        (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), f"{MANIFEST} is damaged"),
        (
            lambda folder: write_json(folder / MANIFEST, {**read_json(folder / MANIFEST), "output_hash": "0"}),
            f"{MANIFEST} is changed since it was written",
        ),
    ],
)
def test_every_damage_is_noticed_and_its_file_named(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(CorruptError, match=message):
        verified_manifest(folder)


def test_an_atomic_folder_appears_only_when_its_block_has_ended_well(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"

    def fail() -> None:
        with atomic_folder(target) as made:
            (made / "x").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(target.parent.iterdir()) == []
    with atomic_folder(target) as made:
        (made / "sub").mkdir()
        (made / "sub" / "x").write_text("1")
        assert not target.exists()
        assert made.parent == target.parent, "a rename is atomic only within one file system"
    assert (target / "sub" / "x").read_text() == "1"
    assert list(target.parent.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o755


def test_the_first_of_two_writers_wins_and_the_second_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with atomic_folder(target) as late:
        (late / "x").write_text("late")
        with atomic_folder(target) as early:
            (early / "x").write_text("early")
    assert (target / "x").read_text() == "early"
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_killed_writer_left_is_deleted_by_the_next_of_the_same_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "target") as left:
        pass
    (tmp_path / "target").rename(left)  # A killed writer leaves this, without a lock.
    (others := left.with_name(left.name.replace("target", "other"))).mkdir()
    (anybodys := tmp_path / ".target.settings").mkdir()
    with atomic_folder(tmp_path / "target"):
        pass
    assert not left.exists()
    assert others.exists()
    assert anybodys.exists()


def test_what_a_living_writer_has_so_far_is_left_alone(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "target") as slow:
        (slow / "half").write_text("x")
        with atomic_folder(tmp_path / "target"):
            pass
        assert (slow / "half").exists()


@pytest.mark.parametrize("write", [lambda path: replace_file(path, b"new\n"), lambda path: append_line(path, "new")])
def test_what_is_written_is_on_the_disk_when_the_call_returns(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("")
    on_disk: dict[int, int] = {}
    real = os.fsync

    def fsync(handle: int) -> None:
        on_disk[os.fstat(handle).st_ino] = os.fstat(handle).st_size
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write(path)
    assert path.read_text() == "new\n"
    assert on_disk[path.stat().st_ino] == 4
