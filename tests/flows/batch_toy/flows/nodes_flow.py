"""A step in two nodes at once, for the stand-in."""

import json
import os

from metaflow import FlowSpec, current, parallel, step


class NodesFlow(FlowSpec):
    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @parallel
    @step
    def train(self):
        self.seen = (current.parallel.node_index, current.parallel.num_nodes, current.parallel.main_ip, os.environ["AWS_BATCH_JOB_ID"])
        print("node", *self.seen, flush=True)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.nodes = [task.seen for task in inputs]
        self.next(self.end)

    @step
    def end(self):
        print("found", json.dumps(self.nodes))


if __name__ == "__main__":
    NodesFlow()
