"""The command `chess-grpo export`: a model as safetensors, ONNX and JSON with a model card; and the options that publish a folder."""

import argparse
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from grpo.base.files import atomic_folder, sha256_file, write_manifest
from grpo.policy.files import is_policy, policy_facts, weights_file
from grpo.settings.tree import ConfigError
from steps.export.hub import OTHER_LICENCE, OWN_LICENCE, RepoKind, push, require_hub
from steps.kinds.lookup import KINDS
from steps.runs.find_policy import FoundPolicy, find_policy
from steps.runs.names import POLICY_NAMES, is_folder
from steps.runtime.commands import pasteable
from steps.runtime.machine import Machine
from steps.runtime.terminal_lines import say

if TYPE_CHECKING:
    from steps.export.model_card import CardFacts, CardWords
    from steps.step_io.results import Results

_LICENCE: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


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
    model = cache(lambda: find_policy(given.model, Machine.here()))  # A folder that is there is refused before.
    return export_folder(
        given,
        "model",
        again=f"chess-grpo export {given.model} {given.out}",
        is_same=lambda folder: _has_weights(folder, model().weights_hash),
        write=lambda folder: _written(given, model(), folder),
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


def add_push(parser: argparse.ArgumentParser) -> None:
    """Add `--push`, `--private` and `--license`."""
    parser.add_argument(
        "--push",
        metavar="USER/NAME",
        help="publish the folder as this repository of the Hugging Face hub; if OUT is there from an earlier export of the same, it is"
        " published as it is, with your changes to its README.md",
    )
    parser.add_argument("--private", action="store_true", help="with --push: a new repository is private")
    parser.add_argument(
        "--license",
        metavar="ID",
        help=f"licence that the card states, by the hub's id such as cc0-1.0 (default {OWN_LICENCE}, or {OTHER_LICENCE} where others have"
        " rights in it)",
    )


def export_folder(
    given: argparse.Namespace, kind: RepoKind, *, again: str, is_same: Callable[[Path], bool], write: Callable[[Path], str]
) -> int:
    """Write the folder OUT, publish it if asked, and return the exit status.

    Args:
        given: the command line, with `out` and the options of `add_push`.
        kind: of repository.
        again: the command without its options.
        is_same: whether a folder that is there has what would be exported.
        write: writes into the folder, and returns a line for people.

    Raises ConfigError for wrong options and for a folder that is there and may not be published; PushError.
    """
    out = given.out.resolve()
    if given.license is not None and not _LICENCE.fullmatch(given.license):
        raise ConfigError(f"--license {given.license}: not an id of a licence; give one such as mit, cc0-1.0 or cc-by-4.0")
    if given.private and given.push is None:
        raise ConfigError("--private is for a new repository of the hub: give --push USER/NAME too")
    if out.exists() and (given.push is None or not is_same(out)):
        why = " and holds something else" if given.push is not None else ""
        raise ConfigError(f"{out} already exists{why}; name another folder, or remove it")
    if given.push is not None:
        require_hub(given.push)
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(out) as folder:
            told = write(folder)
        say(told)
        print(f"written: {out}")
    if given.push is not None:
        command = pasteable(f"{again} --push {given.push}{' --private' if given.private else ''}")
        print(f"published: {push(out, given.push, kind, is_private=given.private, again=command)}")
    return 0
