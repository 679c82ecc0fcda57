"""Compare the outputs of `smoke` and `language-smoke` with tests/golden_hashes.json, file by file; `--write` makes that file anew.

.venv/bin/python tests/golden_hashes.py [--write] [--preset smoke]

A commit that moves a hash on purpose writes the file anew and says why. Another processor or Stockfish may give other hashes, so this is
no test.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).with_suffix(".json")
PRESETS = {"language-smoke": ROOT / "tests" / "presets" / "language-smoke.toml"}


def run(preset: str) -> dict[str, Any]:
    """Return step -> its outputs' hashes with those of their files, after a run in an empty home."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        environment = os.environ | {"CHESS_GRPO_HOME": str(home), "CHESS_GRPO_DEVICE": "cpu", "CHESS_GRPO_THREADS": "1"}
        command = [
            sys.executable,
            str(ROOT / "flows" / "chess_grpo.py"),
            "--no-pylint",
            "--config-value",
            "settings",
            f'preset = "{PRESETS.get(preset, preset)}"',
        ]
        subprocess.run([*command, "run"], cwd=folder, env=environment, check=True, stdout=sys.stderr)
        outputs: dict[str, Any] = {}
        for manifest in sorted((home / "outputs").glob("*/*/manifest.json")):
            facts = json.loads(manifest.read_text())
            outputs.setdefault(facts["step"], []).append({"output": facts["output_hash"][:16], "files": _short(facts["files"])})
        return {step: sorted(parts, key=lambda part: part["output"]) for step, parts in outputs.items()}


def _short(files: dict[str, Any]) -> dict[str, str]:
    return {name: str(found["sha256"] if isinstance(found, dict) else found)[:16] for name, found in sorted(files.items())}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return a line for each output that differs, with the files that do."""
    lines = []
    for step in sorted({*before, *now}):
        old, new = ([part["files"] for part in outputs.get(step, [])] for outputs in (before, now))
        if [part["output"] for part in before.get(step, [])] != [part["output"] for part in now.get(step, [])]:
            names = {name for part in [*old, *new] for name in part}
            moved = [name for name in sorted(names) if sorted(str(p.get(name)) for p in old) != sorted(str(p.get(name)) for p in new)]
            lines.append(f"{step}: {', '.join(moved)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="make the file anew")
    parser.add_argument("--preset", action="append", choices=["smoke", "language-smoke"], help="only this one")
    chosen = parser.parse_args()
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    now = {preset: run(preset) for preset in chosen.preset or ("smoke", "language-smoke")}
    if chosen.write:
        GOLDEN.write_text(json.dumps(golden | now, indent=1, sort_keys=True) + "\n")
        return
    moved = [f"{preset}: {line}" for preset, outputs in now.items() for line in differences(golden[preset], outputs)]
    print("\n".join(moved) or "all output hashes are equal")
    raise SystemExit(bool(moved))


if __name__ == "__main__":
    main()
