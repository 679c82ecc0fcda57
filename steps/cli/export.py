"""The command `chess-grpo export`: a policy as a folder of safetensors and JSON, with its model card."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpo.base.files import atomic_folder, write_manifest
from grpo.policy.files import policy_facts, policy_file_names, weights_file
from grpo.settings.tree import ConfigError
from steps.pages.known import results_of
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import FoundPolicy, find_policy

if TYPE_CHECKING:
    from steps.pages.results import Results


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path, resolve_path=True))
def command(model: str, out: Path) -> int:
    """Export a policy to the new folder OUT for other programs: its weights as safetensors, the JSON that describes it, a model card.

    MODEL is champion, peak, a run's id or a folder (docs/commands.md).
    """
    if out.exists():
        raise ConfigError(f"{out} already exists; name another folder, or remove it")
    machine = Machine.here()
    found = find_policy(model, machine)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for name in policy_file_names(found.folder):
            shutil.copyfile(found.folder / name, folder / name)
        _write_card(found, folder, results_of(found.record, Store.of(machine)))
        write_manifest(folder, {"kind": "export", "run": found.run, "step": found.policy_step})
    print(f"written: {out}")
    return 0


def _write_card(model: FoundPolicy, folder: Path, results: "Results | None") -> None:
    from steps.names import EXPORT_CARD
    from steps.pages.templates import page

    described = policy_facts(folder)
    hashes = {weights_file(folder).name: model.weights_hash, "action table": described["action_table"]}
    card = page("model_card", results=results, run=model.run, policy_step=model.policy_step, described=described, hashes=hashes)
    (folder / EXPORT_CARD).write_text(card, encoding="utf-8")
