"""A flow of three steps with a fan-out, for the stand-in: it notes what its jobs can see, and one of them waits to be killed."""

import hashlib
import importlib
import json
import os
import sys
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "toy_parts").is_dir() and str(_ROOT) not in sys.path:
    sys.path.insert(0, str(_ROOT))

from metaflow import FlowSpec, Parameter, current, environment, package_sources, retry, secrets, step  # noqa: E402


def outcome(action):
    """Return the name of the error that an action ends with, or what it returns."""
    try:
        return action()
    except (ImportError, LookupError, OSError) as error:
        return type(error).__name__


@package_sources(["../toy_parts"])
class ToyFlow(FlowSpec):
    on_launcher = Parameter("on-launcher", default="", help="a file on the launcher's disk")

    @environment(vars={"FORWARDED": "by value"})
    @secrets(sources=["aws-secrets-manager.toy/password"])
    @step
    def start(self):
        self.seen = {
            "package": outcome(lambda: importlib.import_module("toy_left_out").__name__),
            "checkout": outcome(lambda: importlib.import_module("grpo").__name__),
            "file": outcome(lambda: Path(self.on_launcher).read_text()),
            "variable": outcome(lambda: os.environ["NOT_FORWARDED"]),
            "forwarded": outcome(lambda: os.environ["FORWARDED"]),
            "secret": outcome(lambda: hashlib.sha256(os.environ["TOY_PASSWORD"].encode()).hexdigest()),
            "folder": str(Path.cwd()),
            "home": [path.name for path in Path.home().iterdir()],
        }
        self.numbers = [1, 2]
        self.next(self.work, foreach="numbers")

    @retry(times=1, minutes_between_retries=0)
    @step
    def work(self):
        from toy_parts.doubling import double

        self.attempt = current.retry_count
        print(f"working on {self.input}, attempt {self.attempt}", flush=True)
        if self.input == 2 and self.attempt == 0:
            time.sleep(600)
        self.doubled = double(self.input)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.seen = inputs[0].seen
        self.total = sum(task.doubled for task in inputs)
        self.attempts = [task.attempt for task in inputs]
        self.next(self.end)

    @step
    def end(self):
        print("found", json.dumps({"total": self.total, "attempts": self.attempts, **self.seen}))


if __name__ == "__main__":
    ToyFlow()
