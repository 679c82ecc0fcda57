"""Provenance of a policy: the reports and manifests of the step outputs that it was made from, found by their hashes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.files import MANIFEST, read_json

REPORTING_STEPS: Final = ("join_boards", "pretrain", "baseline", "finetune", "select")
"""Steps whose reports document a policy."""

_REPORT: Final = "report.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """The reports and manifests of a run's outputs; a missing step is absent."""

    reports: Mapping[str, Mapping[str, Any]]
    """Step -> its `report.json`."""
    manifests: Mapping[str, Mapping[str, Any]]
    """Step -> its `manifest.json`."""


def run_facts(folders: Mapping[str, Path]) -> RunFacts:
    """Read reports and manifests, given the output folders of a run's steps by name; steps without a report are left out."""
    known = {step: folder for step, folder in folders.items() if step in REPORTING_STEPS and (folder / _REPORT).is_file()}
    return RunFacts(
        reports={step: read_json(folder / _REPORT) for step, folder in known.items()},
        manifests={step: read_json(folder / MANIFEST) for step, folder in known.items()},
    )


def facts_behind(folder: Path) -> RunFacts:
    """Return the facts of the run behind a policy: of the step output that contains it, and of all inputs of that step.

    Outputs name their inputs by hash. Inputs that are not on this machine are absent.
    """
    return run_facts(dict(_outputs_behind(folder)))


def _outputs_behind(folder: Path) -> Iterator[tuple[str, Path]]:
    origin = next((parent for parent in (folder, *folder.parents) if _manifest(parent).get("step") in REPORTING_STEPS), None)
    if origin is None:
        return
    outputs = {
        manifest["output_hash"]: (manifest["step"], path.parent)
        for path in sorted(origin.parent.parent.glob(f"*/*/{MANIFEST}"))
        if (manifest := _manifest(path.parent)).get("step") in REPORTING_STEPS
    }
    made_from = _inputs(origin)
    yield _manifest(origin)["step"], origin
    yield from (outputs[digest] for digest in made_from.values() if digest in outputs)
    yield from _baseline(origin, [path for step, path in outputs.values() if step == "baseline"])


def _baseline(origin: Path, candidates: list[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the baseline of the same pretrained policy and boards; no step has it as an input."""
    manifest = _manifest(origin)
    wanted = {name: digest for name, digest in _inputs(origin).items() if name in ("boards", "pretrained")}
    if manifest["step"] == "pretrain":
        wanted["pretrained"] = manifest["output_hash"]
    evaluation = manifest["parts"]["settings"].get("evaluation")
    for path in candidates:
        settings = _manifest(path)["parts"]["settings"]
        if wanted.items() <= _inputs(path).items() and evaluation in (None, settings["evaluation"]):
            yield "baseline", path
            return


def _inputs(folder: Path) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = _manifest(folder)["parts"]["inputs"]
    return inputs


def _manifest(folder: Path) -> Mapping[str, Any]:
    return read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
