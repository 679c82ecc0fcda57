"""Command `chess-grpo export`."""

import shutil
from pathlib import Path

import click

from grpo.base.files import atomic_folder, write_manifest
from grpo.policy.files import policy_facts, policy_file_names, weights_file
from grpo.settings.tree import ConfigError
from steps.names import EXPORT_CARD
from steps.pages.known import results_of
from steps.pages.templates import page
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track.find import FoundPolicy, find_policy


@click.command()
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path, resolve_path=True))
def command(model: str, out: Path) -> int:
    """Write a policy's files and model card to the new folder OUT. MODEL: champion, peak, a run id or a folder (docs/commands.md)."""
    if out.exists():
        raise ConfigError(f"{out} already exists; name another folder, or remove it")
    machine = Machine.here()
    policy = find_policy(model, machine)
    write_export(policy, Store.of(machine), out)
    print(f"written: {out}")
    return 0


def write_export(policy: FoundPolicy, store: Store, out: Path) -> None:
    """Write the new folder `out`: the policy's files, its model card, and a manifest with run, step and strength."""
    results, facts = results_of(policy.record, store), policy_facts(policy.folder)
    hashes = {weights_file(policy.folder).name: policy.weights_hash, "action table": facts["action_table"]}
    if (exported := policy.folder / EXPORT_CARD).is_file():
        card = exported.read_text(encoding="utf-8")
    else:
        card = page("model_card", results=results, run=policy.run, policy_step=policy.policy_step, described=facts, hashes=hashes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        for name in policy_file_names(policy.folder):
            shutil.copyfile(policy.folder / name, folder / name)
        (folder / EXPORT_CARD).write_text(card, encoding="utf-8")
        strength = policy.strength if results is None or policy.policy_step is None else results.about(policy.policy_step)
        write_manifest(folder, {"kind": "export", "run": policy.run, "step": policy.policy_step, "strength": strength})
