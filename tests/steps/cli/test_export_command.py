"""An exported policy is a whole folder that every command takes for a model, with the results of the run that made it."""

from collections.abc import Callable
from pathlib import Path

from made_documents import made_results
from made_runs import MadeRun, machine_of, make_run

from grpo.base.files import sha256_file, verified_manifest
from steps.names import RESULTS
from steps.track.find import find_policy

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
