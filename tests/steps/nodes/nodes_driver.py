"""The step processes of several nodes on one machine, each with a home of its own, forked as `forking.py` does.

What they start is the program `training_process.py`, or `idle_process.py`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from forking import serve

import steps.nodes.launch
import steps.nodes.membership
from grpo.base.errors import PlainError
from steps.nodes.launch import run_on_nodes
from steps.nodes.node import LOOPBACK, Node
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE


def run(job: dict[str, Any]) -> None:
    """Do a node's part and end as a step of the flow would."""
    os.chdir(job["home"])
    steps.nodes.membership._SECONDS_FOR_REASONS = job.get("seconds_for_reasons", 120)  # type: ignore[misc]
    steps.nodes.membership._SECONDS_BETWEEN_BEATS = 0.5  # type: ignore[misc]
    steps.nodes.launch._SECONDS_TO_EXIT = job.get("seconds_to_exit", 120)  # type: ignore[misc]
    node = Node(index=job["index"], count=job["count"], main_address=LOOPBACK, attempt=job["attempt"])
    program = Path(__file__).with_name(job["program"])
    try:
        run_on_nodes(node, (sys.executable, str(program), json.dumps(job)), 1, seconds_to_come=300)
    except PlainError as error:
        print(f"finetune: {error}")
        sys.exit(RESUMABLE if error.may_pass else NO_RETRY)


if __name__ == "__main__":
    serve(run)
