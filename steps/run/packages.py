"""Whether this Python has the project's packages. Imports none of them, and is read by older versions of Python too."""

import shlex
import sys
from importlib.util import find_spec

_NEEDED = ("metaflow", "pydantic", "chess", "numpy")


def require_packages() -> None:
    """End a script with one line, which has the command to type, when a Python without the project's packages started it."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        command = shlex.join([".venv/bin/python", *sys.argv])
        raise SystemExit(
            f"{sys.executable} has no package {', '.join(missing)}. `make setup` in the checkout installs all of them into .venv; then"
            f" type: {command} (In a container: its image lacks them, docs/aws.md)"
        )
