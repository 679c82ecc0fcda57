"""The same flow with distributed GRPO: in `finetune` several machines (nodes) train one policy together.

.venv/bin/python flows/chess_grpo_nodes.py run
.venv/bin/python flows/chess_grpo_nodes.py run --with batch

It is a flow of its own because a parallel step needs a join after it, and Step Functions and Airflow do not support parallel steps. The
number of machines is the setting resources.num_nodes.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chess_grpo import ChessGrpo, evaluation, plainly  # type: ignore[import-not-found]  # Beside this file, which Metaflow packages flat.
from metaflow import card, current, parallel, step

from steps.batch import deployment
from steps.cards.registry import watch
from steps.nodes.node import Node
from steps.runtime.lazy_module import LazyModule

if TYPE_CHECKING:
    from steps.nodes import launch
else:
    launch = LazyModule("steps.nodes.launch")


class ChessGrpoNodes(ChessGrpo):
    """Train a chess policy from games and Stockfish evaluations, with GRPO on several machines, and measure whether GRPO improved it."""

    @card(type="blank", id="baseline", refresh_interval=1)
    @step
    @plainly
    def baseline(self):
        """Measure the pretrained policy's strength before GRPO."""
        card = watch("baseline")
        self.baseline_report = card.finished(evaluation.baseline(self.job, self.boards, self.pretrained, self.calibrated, [card]))
        self.next(self.finetune, num_parallel=self.settings.resources.num_nodes)

    @card(type="blank", id="train", refresh_interval=1)
    @parallel
    @step
    @plainly
    def finetune(self):
        """Train with GRPO, together with the other nodes."""
        card = watch("finetune", self.job["settings"])
        node = Node(
            index=current.parallel.node_index,
            count=current.parallel.num_nodes,
            main_address=current.parallel.main_ip,
            attempt=f"{current.run_id}/{current.step_name}/{current.retry_count}",
        )
        self.finetuned = launch.finetune_on_nodes(node, self.job, self.boards, self.pretrained, [card], on_assessed=card.assessed)
        if self.finetuned is not None:  # Only node 0 has the output.
            card.finished(self.finetuned)
        self.next(self.gather)

    @step
    @plainly
    def gather(self, inputs):
        """Continue with the output that node 0 stored."""
        self.finetuned = inputs[0].finetuned
        self.merge_artifacts(inputs)
        self.next(self.screen)


if __name__ == "__main__":
    # Metaflow starts the other local nodes as `python`: put this interpreter first on the PATH.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    deployment.main(ChessGrpoNodes)
