"""The command `chess-grpo export`: a policy as a folder of safetensors and JSON, with its model card."""

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from grpo.base.files import MANIFEST, atomic_folder, read_json, write_manifest
from grpo.policy.files import policy_facts, policy_file_names, weights_file
from grpo.settings.tree import ConfigError
from steps.run.machine import Machine
from steps.track.find import POLICY_NAMES, FoundPolicy, find_policy, is_folder

if TYPE_CHECKING:
    from steps.pages.results import Results


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
    machine = Machine.here()
    model = find_policy(given.model, machine)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for name in policy_file_names(model.folder):
            shutil.copyfile(model.folder / name, folder / name)
        _write_card(model, folder, _results(given.model, model, machine))
        write_manifest(folder, {"kind": "export", "run": model.run, "policy_step": model.policy_step})
    print(f"written: {out}")
    return 0


def _results(name: str, model: FoundPolicy, machine: Machine) -> "Results | None":
    """Return the results of the run behind a policy; None where they are not known."""
    from steps.cli.runs import results_of
    from steps.run.records import Runs
    from steps.run.store import Store

    store = Store.of(machine)
    if not is_folder(name):
        run = Runs(store).get(model.run)
        return None if run is None else results_of(run, store)
    # The newest run that has the output which contains this folder.
    for manifest in (parent / MANIFEST for parent in (model.folder, *model.folder.parents) if (parent / MANIFEST).is_file()):
        made = read_json(manifest)
        for run in Runs(store).all():
            output = None if "step" not in made else run.output_of(str(made["step"]))
            if output is not None and output["output_hash"] == made["output_hash"]:
                return results_of(run, store)
    return None


def _write_card(model: FoundPolicy, folder: Path, results: "Results | None") -> None:
    from steps.pages.templates import model_card
    from steps.run.names import EXPORT_CARD

    described = policy_facts(folder)
    hashes = {weights_file(folder).name: model.weights_hash, "action table": described["action_table"]}
    card = model_card(results, run=model.run, policy_step=model.policy_step, described=described, hashes=hashes)
    (folder / EXPORT_CARD).write_text(card, encoding="utf-8")
