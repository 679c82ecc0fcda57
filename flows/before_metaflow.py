"""Prepares the process before `chess_grpo.py` imports Metaflow: import path, user name, early checks."""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent

# In a checkout, `steps` and `grpo` lie beside this folder; in a container they are on the path.
if (_FOLDER.parent / "steps").is_dir() and str(_FOLDER.parent) not in sys.path:
    sys.path.insert(0, str(_FOLDER.parent))

# Metaflow refuses the user name root.
if os.environ.get("METAFLOW_USER", "root") == "root":
    os.environ["METAFLOW_USER"] = "chess-grpo" if os.environ.get("USER", "root") in ("", "root") else os.environ["USER"]

if missing := [name for name in ("metaflow", "pydantic", "chess", "numpy") if find_spec(name) is None]:
    raise SystemExit(
        f"{sys.executable} has no package {', '.join(missing)}. Run `make setup` in the checkout, then"
        f" {shlex.join(['.venv/bin/python', *sys.argv])} (in a container: the image lacks the packages, see docs/aws.md)"
    )

from grpo.base.errors import PlainError
from steps.batch.before_launch import prepare

try:
    for note in prepare(sys.argv[1:], os.environ):
        print(note, file=sys.stderr)
except PlainError as error:
    raise SystemExit(str(error)) from None

# Torch's idle threads spin for 0.5 ms, between operations; longer, they would take the engine's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Before the slow imports of `chess_grpo.py`: a process that runs a file of this folder ends with its parent.
if Path(sys.argv[0]).resolve().parent == _FOLDER:
    from steps.run.processes import PLACES, end_with_parent

    # A process that waits for a remote job unwinds, so Metaflow kills the job.
    end_with_parent(unwinds=not set(PLACES).isdisjoint(sys.argv))
