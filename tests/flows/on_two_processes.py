"""The step `finetune` on one node with two processes, without Metaflow: `python on_two_processes.py ARTIFACTS` leaves what was heard.

ARTIFACTS, JSON, are those of a run whose outputs are in this process's home; the run that this starts there is another.
"""

import json
import sys
from pathlib import Path
from typing import Any

from grpo.metrics.table import Record
from grpo.settings.tree import read_settings
from steps.nodes.launch import finetune_on_nodes
from steps.nodes.node import LOOPBACK, Node
from steps.pipeline.start import start
from steps.store.versions import describe_code


class Card:
    """A sink that keeps what it was told."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Any]] = {"steps": [], "progress": [], "assessed": []}

    def log(self, record: Record) -> None:
        self.heard["steps"].append(record.step)

    def progress(self, done: int, total: int, unit: str) -> None:
        self.heard["progress"].append([done, total, unit])


def main(path: Path) -> None:
    artifacts, card = json.loads(path.read_text()), Card()
    settings = read_settings("test").model_dump(mode="json")
    job = start(settings, describe_code(), metaflow_run="two", is_fresh=False, resume_from=None)
    node = Node(index=0, count=1, main_address=LOOPBACK, attempt=str(path), num_processes=2)
    arguments = node, job, artifacts["boards"], artifacts["pretrained"], [card]
    output = finetune_on_nodes(*arguments, on_assessed=card.heard["assessed"].append)
    again = finetune_on_nodes(*arguments)
    path.write_text(json.dumps({**card.heard, "output": output, "again": again}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
