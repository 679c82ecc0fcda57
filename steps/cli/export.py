"""The command `chess-grpo export`: writes a model as safetensors, ONNX and JSON with a model card."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.base.files import sha256_file, write_manifest
from grpo.policy.files import is_policy, policy_facts, weights_file
from steps.cli.push import add_push, export
from steps.kinds.lookup import KINDS
from steps.runs.find_policy import FoundPolicy, find_policy
from steps.runs.names import POLICY_NAMES, is_folder
from steps.runtime.machine import Machine

if TYPE_CHECKING:
    from steps.export.model_card import CardFacts, CardWords
    from steps.step_io.results import Results


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `export` to the commands."""
    parser = commands.add_parser(
        "export",
        description="Export a model to a folder for other programs: weights, ONNX, JSON with everything needed to use them, a model card."
        " The ONNX file is compared with the policy on 1,000 positions; if they differ, nothing is written. A language model is"
        " written in transformers' format, without ONNX, and compared by its answers.",
    )
    parser.add_argument("model", metavar="MODEL", help=POLICY_NAMES)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to create; it must not exist, unless with --push")
    add_push(parser)
    parser.set_defaults(run=_export)


def _export(given: argparse.Namespace) -> int:
    model = find_policy(given.model, Machine.here())
    return export(
        given,
        "model",
        again=f"chess-grpo export {given.model} {given.out}",
        is_same=lambda folder: _has_weights(folder, model.weights_hash),
        write=lambda folder: _written(given, model, folder),
    )


def _written(given: argparse.Namespace, model: FoundPolicy, folder: Path) -> str:
    from steps.export.model_card import hub_card  # It imports torch, which takes seconds: a typo gets its answer before.
    from steps.step_io.names import HUB_CARD

    facts = {"run": model.run, "policy_step": model.policy_step}
    kind = KINDS[model.kind]
    file, parity = kind.export(model.folder, folder, facts)
    card = _card_facts(model, kind.card(folder), folder, parity, _document(given.model, model))
    (folder / HUB_CARD).write_text(hub_card(card, licence=given.license), encoding="utf-8")
    write_manifest(folder, {"kind": "export", **facts})
    return f"{file}: {parity}"


def _has_weights(folder: Path, sha256: str) -> bool:
    return is_policy(folder) and sha256_file(weights_file(folder)) == sha256


def _document(name: str, model: FoundPolicy) -> "Results | None":
    """Return the results of the run behind a policy; None where they are not known."""
    from steps.runs.index import find_run
    from steps.runs.results import document_behind, run_document

    machine = Machine.here()
    return document_behind(model.folder) if is_folder(name) else run_document(find_run(name.partition("/")[0], machine), machine)


def _card_facts(model: FoundPolicy, words: "CardWords", folder: Path, parity: str, results: "Results | None") -> "CardFacts":
    from steps.export.model_card import CardFacts

    described = policy_facts(folder)
    hashes = {
        "weights, as numbers": described["weights_hash"],
        described["weights_file"]["name"]: described["weights_file"]["sha256"],
        "action table": described["action_table"],
    }
    return CardFacts(
        run=model.run,
        policy_step=model.policy_step,
        words=words,
        hashes=hashes,
        results=results,
        parity=parity,
    )
