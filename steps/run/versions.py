"""The version of a step: a hash of everything that its output depends on.

It covers the settings that the step reads, the hashes of its inputs, the code that computes it (`steps.run.code`), and the locked runtime
dependencies (linters and test tools change no output). The same version gives the same output hash, so an output that the store has under
its version is reused.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import TypedDict

from grpo.base.door import STRICT
from grpo.base.files import sha256_file, sha256_json
from grpo.settings.tree import PolicyConfig
from steps.run.code import ROOT, code_hash
from steps.run.step import Step

LOCK: Final = ROOT / "steps" / "run" / "requirements-run.lock"
"""Lock file of the packages that step outputs depend on; in a package, so that an installation has it too."""

CODE: Final = "_CHESS_GRPO_CODE"
"""Variable: what `describe_code` says where a run is launched or resumed, for its tasks in containers."""


@STRICT
class CodeFacts(TypedDict):
    """The code that runs, as far as it is known."""

    commit: str
    is_dirty: bool
    """Whether files differ from the commit."""
    lock: str
    """Hash of the lock file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVersion:
    """A version and the parts that were hashed, to explain how two versions differ."""

    version: str
    parts: Mapping[str, Any]


def step_version(
    step: Step, policy: PolicyConfig, *, settings: Mapping[str, Any], inputs: Mapping[str, str], code: Mapping[str, Any]
) -> StepVersion:
    """Return the version of a step.

    Args:
        step: its name, and the module with its body.
        policy: its kind says which module that is, and its network is code too.
        settings: the part of the settings that it reads, JSON-able.
        inputs: name -> hash of each input from other steps, files, engine or machine.
        code: from `describe_code`; only its lock counts, because a commit may not affect this step. Of a run that computes everything
            anew, its name is in it too, as `fresh`: its versions are its own.
    """
    parts = {
        "step": step.name,
        "settings": dict(settings),
        "inputs": dict(inputs),
        "sources": code_hash(step.variant(policy.kind).module, policy.kind, policy.network),
        "lock": code["lock"],
        "fresh": code.get("fresh", ""),
    }
    return StepVersion(version=sha256_json(parts)[:24], parts=parts)


def describe_code() -> CodeFacts:
    """Return what is known of the code that runs here.

    A container has no git: there the commit is that of the launching checkout, which hands it on in the variable `CODE`.
    """
    lock = sha256_file(LOCK)
    if inherited := os.environ.get(CODE):
        launched = json.loads(inherited)
        return CodeFacts(commit=launched["commit"], is_dirty=launched["is_dirty"], lock=lock)
    try:
        commit = _git("rev-parse", "HEAD")
        is_dirty = bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return CodeFacts(commit="unknown", is_dirty=True, lock=lock)
    return CodeFacts(commit=commit, is_dirty=is_dirty, lock=lock)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
