"""The same pipeline with GRPO on several machines at once: those of `finetune` train one policy together.

python flows/chess_grpo_nodes.py run
python flows/chess_grpo_nodes.py run --with batch

A flow of its own, for a parallel step needs a join behind it, and Step Functions and Airflow know no parallel steps: flows/chess_grpo.py
stays one line that compiles for all. The number of machines is the setting resources.num_nodes.
"""

import os
import sys
from pathlib import Path

from chess_grpo import ChessGrpo, evaluation, plainly, training  # type: ignore[import-not-found]  # Beside this file, which Metaflow packages flat.
from metaflow import card, current, parallel, step

from steps.batch import deployment
from steps.cards.registry import watch
from steps.nodes.sockets import Node


class ChessGrpoNodes(ChessGrpo):
    """Turn Stockfish and some games into a chess policy, with GRPO on several machines, and say by how much GRPO made it better."""

    @card(type="blank", id="baseline", refresh_interval=1)
    @step
    @plainly
    def baseline(self):
        """Know the pretrained policy's strength before GRPO touches it."""
        card = watch("baseline")
        self.baseline_report = card.finished(evaluation.baseline(self.job, self.boards, self.pretrained, self.calibrated, [card]))
        self.next(self.finetune, num_parallel=self.settings.resources.num_nodes)

    @card(type="blank", id="train", refresh_interval=1)
    @parallel
    @step
    @plainly
    def finetune(self):
        """Learn from groups of moves, together with the other machines."""
        card = watch("finetune", self.job["settings"])
        node = Node(
            index=current.parallel.node_index,
            count=current.parallel.num_nodes,
            main_address=current.parallel.main_ip,
            attempt=f"{current.run_id}/{current.step_name}/{current.retry_count}",
        )
        self.finetuned = training.finetune(self.job, self.boards, self.pretrained, [card], on_assessed=card.assessed, node=node)
        if node.index == 0:  # The others have nothing to draw from.
            card.finished(self.finetuned)
        self.next(self.gather)

    @step
    @plainly
    def gather(self, inputs):
        """Go on with what node 0 has stored; the others were told of it, and have nothing else."""
        self.finetuned = inputs[0].finetuned
        self.merge_artifacts(inputs)
        self.next(self.screen)

    def _num_nodes(self):
        return self.settings.resources.num_nodes


if __name__ == "__main__":
    # Metaflow starts the other nodes of this machine as `python`: let that be the one that runs this.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    deployment.main(ChessGrpoNodes)
