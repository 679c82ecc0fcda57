"""The step processes of several nodes on one machine, each with a home of its own.

Imports everything, and then runs for each line of JSON it reads, a list of jobs, one forked process a job; answers with their process ids,
and when they have ended with how. What they start is the program `training_process.py`, or `idle_process.py`.
"""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import steps.nodes.launch
import steps.nodes.membership
from grpo.base.errors import PlainError
from steps.nodes.launch import run_on_nodes
from steps.nodes.node import LOOPBACK, Node
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE


def run(job: dict[str, Any]) -> int:
    """Do a node's part and return how a step of the flow would end."""
    steps.nodes.membership._SECONDS_FOR_REASONS = 3.0  # type: ignore[misc]
    steps.nodes.membership._SECONDS_BETWEEN_BEATS = 0.5  # type: ignore[misc]
    steps.nodes.launch._SECONDS_TO_EXIT = job.get("seconds_to_exit", 120)  # type: ignore[misc]
    node = Node(index=job["index"], count=job["count"], main_address=LOOPBACK, attempt=job["attempt"])
    program = Path(__file__).with_name(job["program"])
    try:
        run_on_nodes(node, (sys.executable, str(program), json.dumps(job)), 1, seconds_to_come=20)
    except SystemExit as end:
        return int(end.code or 0)
    except PlainError as error:
        print(f"finetune: {error}")
        return RESUMABLE if error.may_pass else NO_RETRY
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """Run forked processes for each list of jobs that comes in."""
    for line in sys.stdin:
        children = []
        for job in json.loads(line):
            if not (child := os.fork()):
                Path(job["home"]).mkdir(parents=True, exist_ok=True)
                log = os.open(f"{job['home']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.chdir(job["home"])
                status = run(job)
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            children.append(child)
        print(json.dumps(children), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


if __name__ == "__main__":
    serve()
