"""The command `chess-grpo export`: a model as a folder that other programs can use, with the card that says what it is."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo.config import ConfigError
from grpo.content import MANIFEST, atomic_folder, read_json, write_manifest
from grpo.policy_files import policy_facts
from steps.exporting import ONNX, export_policy
from steps.machine import Machine
from steps.model_card import CARD, STEPS, CardFacts, RunFacts, model_card, run_facts
from steps.models import Model, find_model


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `export` to the commands."""
    parser = commands.add_parser(
        "export",
        help="a model for other programs: safetensors, JSON, ONNX, and a model card",
        description="Write a model as a folder for other programs: weights, ONNX, JSON with all that is needed to use them, a model card."
        " The ONNX file is compared with the policy on 1,000 positions, and nothing is written when they differ.",
    )
    parser.add_argument("model", help="champion, peak, or the folder of a policy")
    parser.add_argument("out", type=Path, help="the folder to make; it must not be there")
    parser.set_defaults(run=_export)


def _export(given: argparse.Namespace) -> int:
    out = given.out.resolve()
    if out.exists():
        raise ConfigError(f"{out} is there already; name a folder that is not, or remove it")
    model = find_model(given.model, Machine.here())
    facts = {"run": model.run, "policy_step": model.policy_step}
    with atomic_folder(out) as folder:
        parity = export_policy(model.folder, folder, facts=facts)
        (folder / CARD).write_text(model_card(_card_facts(model, folder, str(parity))), encoding="utf-8")
        write_manifest(folder, {"kind": "export", **facts})
    print(f"{ONNX}: {parity}")
    print(f"written: {out}")
    return 0


def _card_facts(model: Model, folder: Path, parity: str) -> CardFacts:
    described = policy_facts(folder)
    hashes = {
        "weights, as numbers": described["weights_hash"],
        "weights.safetensors": described["weights_file"]["sha256"],
        "action table": described["action_table"],
    }
    return CardFacts(
        run=model.run,
        policy_step=model.policy_step,
        network=described["policy"],
        hashes=hashes,
        behind=facts_behind(model.folder),
        parity=parity,
    )


def facts_behind(folder: Path) -> RunFacts:
    """Return what is known of the run behind a policy: of the step in whose output it lies, and of all that this was made from.

    Outputs name what they were made from by hash, and lie side by side; what is not on this machine stays unknown.
    """
    return run_facts(dict(_outputs_behind(folder)))


def _outputs_behind(folder: Path) -> Iterator[tuple[str, Path]]:
    origin = next((parent for parent in (folder, *folder.parents) if _manifest(parent).get("step") in STEPS), None)
    if origin is None:
        return
    outputs = {
        manifest["output_hash"]: (manifest["step"], path.parent)
        for path in sorted(origin.parent.parent.glob(f"*/*/{MANIFEST}"))
        if (manifest := _manifest(path.parent)).get("step") in STEPS
    }
    made_from = _inputs(origin)
    yield _manifest(origin)["step"], origin
    yield from (outputs[digest] for digest in made_from.values() if digest in outputs)
    yield from _baseline(origin, [path for step, path in outputs.values() if step == "baseline"])


def _baseline(origin: Path, candidates: list[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the baseline of the same pretrained policy and boards: no step is made from it."""
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
