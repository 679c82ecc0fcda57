"""Version of a step: a hash of everything that the step's output depends on. Equal versions have equal outputs, so the store reuses them.

The hash covers the settings that the step reads, the inputs' hashes, the code (`steps.run.code`) and the locked runtime packages.
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
"""Lock file of the runtime packages, without linters and test tools; inside a package, so that an installation has the file too."""

CODE: Final = "_CHESS_GRPO_CODE"
"""Environment variable: result of `describe_code` in the launching checkout as JSON, for tasks in containers."""


@STRICT
class CodeFacts(TypedDict):
    commit: str  # "unknown" without git.
    is_dirty: bool  # Whether files differ from the commit; true without git.
    lock: str  # Hash of the lock file.


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVersion:
    """A version, and the parts that were hashed, which explain how two versions differ."""

    version: str
    parts: Mapping[str, Any]


def step_version(
    step: Step, policy: PolicyConfig, *, settings: Mapping[str, Any], inputs: Mapping[str, str], code: Mapping[str, Any]
) -> StepVersion:
    """Return the version of a step.

    Args:
        step: the step's declaration.
        policy: decides the module of the step's body, and the network, which is code too.
        settings: settings that the step reads, JSON-able.
        inputs: name -> hash, of inputs from other steps, files, engine and machine.
        code: from `describe_code`; only `lock` counts, because a commit may leave this step's code unchanged. A run that reuses no
            output adds its name as `fresh`, so no other run has its versions.
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
    """Return the facts of the running code. A container has no git, so the launching checkout passes commit and flag in `CODE`."""
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
