"""The options of `export` and `boards export` that publish the exported folder on the Hugging Face hub."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from grpo.base.files import atomic_folder
from grpo.settings.tree import ConfigError
from steps.export.hub import OTHER_LICENCE, OWN_LICENCE, RepoKind, push, require_hub
from steps.runtime.commands import pasteable
from steps.runtime.terminal_lines import say

_LICENCE: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


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


def export(given: argparse.Namespace, kind: RepoKind, *, again: str, is_same: Callable[[Path], bool], write: Callable[[Path], str]) -> int:
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
