"""Version of a step: a hash of settings, inputs, code and packages. Equal versions have equal outputs."""

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
_CODE_PATHS: Final = ("flows", "steps", "grpo", "data_checks", "pyproject.toml", "requirements-run.lock")
CODE: Final = "_CHESS_GRPO_CODE"  # Environment variable: the launcher's CodeFacts (JSON), for containers without git.


@STRICT
class CodeFacts(TypedDict):
    commit: str  # "unknown" without git.
    is_dirty: bool  # Whether files differ from the commit; true without git.
    lock: str  # Hash of the lock file.


@dataclass(frozen=True, kw_only=True, slots=True)
class StepVersion:
    version: str
    parts: Mapping[str, Any]


def step_version(
    step: Step, policy: PolicyConfig, *, settings: Mapping[str, Any], inputs: Mapping[str, str], code: Mapping[str, Any]
) -> StepVersion:
    """Hash what a step's output depends on.

    - `settings`: the settings that the step reads, as JSON data
    - `inputs`: name -> hash, of other steps' outputs, files, engine and machine
    - `code`: `lock` of `describe_code()`, and `fresh`, the id of a run that reuses no output (else empty)
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
    lock = sha256_file(LOCK)
    if inherited := os.environ.get(CODE):
        launched = json.loads(inherited)
        return CodeFacts(commit=launched["commit"], is_dirty=launched["is_dirty"], lock=lock)
    try:
        commit = _git("rev-parse", "HEAD")
        is_dirty = bool(_git("status", "--porcelain", "--", *_CODE_PATHS))
    except (OSError, subprocess.CalledProcessError):
        return CodeFacts(commit="unknown", is_dirty=True, lock=lock)
    return CodeFacts(commit=commit, is_dirty=is_dirty, lock=lock)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
