"""Names from outside cannot name a path outside of their folder, nor the folder itself."""

from pathlib import Path

import pytest

from grpo.base.door import ForeignError, inside


def test_a_name_in_the_folder_is_its_path(tmp_path: Path) -> None:
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"


@pytest.mark.parametrize("name", ["", ".", "a/..", "..", "a/../../b", "/etc", "link"])
def test_the_folder_itself_and_paths_outside_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(ForeignError, match="is outside of"):
        inside(tmp_path, name)
