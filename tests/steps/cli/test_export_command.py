"""An exported policy is a whole folder that every command takes for a model, with the results of the run that made it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from made_documents import made_results
from made_runs import MadeRun, machine_of, make_run

from grpo.base.files import CorruptError, sha256_file, verified_manifest
from steps.names import RESULTS
from steps.track.find import INCLUDED_FOLDER, find_policy

Run = Callable[..., tuple[int, str, str]]


def test_the_folder_has_the_weights_a_card_and_a_manifest(console: Run, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    (policy / "state.safetensors").write_text("the rest of a checkpoint")
    assert console("export", policy, out)[0] == 0
    assert sorted(verified_manifest(out)["files"]) == ["README.md", "facts.json", "policy.safetensors"]
    found = find_policy(str(out), machine_of(tmp_path / "home"))
    assert (found.run, found.policy_step) == ("policy", None), "of whom it was exported"
    assert found.weights_hash == sha256_file(policy / "policy.safetensors")
    assert found.weights_hash in (out / "README.md").read_text()


def test_the_card_of_a_runs_policy_has_its_results(console: Run, tmp_path: Path) -> None:
    machine = machine_of(tmp_path / "home")
    files = {"report": {RESULTS: made_results(tmp_path / "made").model_dump(mode="json")}}
    make_run(machine, MadeRun(name="1001", files=files))
    assert console("export", "1001", out := tmp_path / "out")[0] == 0
    assert "beats its own start" in (out / "README.md").read_text()
    assert "ladder" in find_policy(str(out), machine).strength


def test_a_published_folder_is_a_policy_with_what_the_hub_or_its_owner_adds_but_not_with_other_weights(
    console: Run, policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert console("export", policy, out)[0] == 0
    (out / ".gitattributes").touch()
    (out / "README.md").write_text(f"---\nlicense: mit\n---\n{(out / 'README.md').read_text()}")
    assert find_policy(str(out), machine_of(tmp_path / "home")).run == "policy"
    (out / "policy.safetensors").write_bytes(b"others")
    with pytest.raises(CorruptError, match=r"policy.safetensors is changed"):
        find_policy(str(out), machine_of(tmp_path / "home"))


def test_an_exported_policy_that_is_exported_again_keeps_its_card_and_strength(console: Run, tmp_path: Path) -> None:
    assert console("export", "included", out := tmp_path / "out")[0] == 0
    assert (out / "README.md").read_bytes() == (INCLUDED_FOLDER / "README.md").read_bytes()
    machine = machine_of(tmp_path / "home")
    assert find_policy(str(out), machine).strength == find_policy("included", machine).strength != ""
