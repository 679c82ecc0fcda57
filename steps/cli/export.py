"""The command `chess-grpo export`: a policy as a folder of safetensors and JSON, with its model card."""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.base.files import atomic_folder, write_manifest
from grpo.policy.files import policy_facts, policy_file_names, weights_file
from grpo.settings.tree import ConfigError
from steps.kinds.lookup import KINDS
from steps.runs.find_policy import FoundPolicy, find_policy
from steps.runs.names import POLICY_NAMES, is_folder
from steps.runtime.machine import Machine

if TYPE_CHECKING:
    from steps.step_io.results import Results


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `export` to the commands."""
    parser = commands.add_parser(
        "export",
        description="Export a model to a folder for other programs: its weights as safetensors, the JSON that describes it, a model card.",
    )
    parser.add_argument("model", metavar="MODEL", help=POLICY_NAMES)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to create; it must not exist")
    parser.set_defaults(run=_export)


def _export(given: argparse.Namespace) -> int:
    out = given.out.resolve()
    if out.exists():
        raise ConfigError(f"{out} already exists; name another folder, or remove it")
    model = find_policy(given.model, Machine.here())
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for name in policy_file_names(model.folder):
            shutil.copyfile(model.folder / name, folder / name)
        _write_card(model, folder, _document(given.model, model))
        write_manifest(folder, {"kind": "export", "run": model.run, "policy_step": model.policy_step})
    print(f"written: {out}")
    return 0


def _document(name: str, model: FoundPolicy) -> "Results | None":
    """Return the results of the run behind a policy; None where they are not known."""
    from steps.runs.index import find_run
    from steps.runs.results import document_behind, run_document

    machine = Machine.here()
    return document_behind(model.folder) if is_folder(name) else run_document(find_run(name.partition("/")[0], machine), machine)


def _write_card(model: FoundPolicy, folder: Path, results: "Results | None") -> None:
    from steps.export.model_card import CardFacts, model_card  # It imports torch, which takes seconds: a typo gets its answer before.
    from steps.step_io.names import EXPORT_CARD

    facts = CardFacts(
        run=model.run,
        policy_step=model.policy_step,
        words=KINDS[model.kind].card(folder),
        hashes={weights_file(folder).name: model.weights_hash, "action table": policy_facts(folder)["action_table"]},
        results=results,
    )
    (folder / EXPORT_CARD).write_text(model_card(facts), encoding="utf-8")
