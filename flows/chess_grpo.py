"""Metaflow flow of the pipeline: boards, checks, pretraining, ladder, baseline, GRPO, selection, report.

The ladder is a set of engine opponents, which rate the policies. Commands:

.venv/bin/python flows/chess_grpo.py run
.venv/bin/python flows/chess_grpo.py run --with batch
.venv/bin/python flows/chess_grpo.py --config settings my.toml run --resume-from peak
.venv/bin/python flows/chess_grpo.py --config-value settings 'preset = "smoke"
grpo.learning_rate = 1e-3' run
"""

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# `python -P` and tests do not have the folder of `before_metaflow` on the path.
sys.path.append(str(Path(__file__).resolve().parent))
import_module("before_metaflow")

from metaflow import Config, FlowSpec, Parameter, card, current, package_sources, project, step

import steps
from grpo.base.errors import PlainError
from grpo.settings.tree import DEFAULT_PRESET, ConfigError, read_settings, split_settings
from steps.batch import deployment
from steps.cards.offline import OfflineCard
from steps.job import task
from steps.run.processes import NO_RETRY, RESUMABLE

deployment.name_store()  # Sets a variable that `Deployment` passes to tasks.


def plainly(body: Callable[..., None]) -> Callable[..., None]:
    """Print a PlainError without a traceback. The error's `may_pass` decides whether Metaflow may retry the task."""

    @functools.wraps(body)
    def wrapped(*arguments: Any) -> None:
        try:
            with deployment.as_task():
                body(*arguments)
        except PlainError as error:
            print(f"{body.__name__}: {error}", file=sys.stderr, flush=True)
            raise SystemExit(RESUMABLE if error.may_pass else NO_RETRY) from None

    return wrapped


def _parse(text: str) -> dict[str, Any]:
    """Return the settings as plain data, and the keys that the text sets."""
    try:
        return {"settings": read_settings(text).model_dump(mode="json"), "keys": split_settings(text)[1]}
    except ConfigError as error:
        raise SystemExit(str(error)) from None


@project(name="chess_grpo")
@deployment.Deployment
@package_sources(["../steps", "../grpo", "../data_checks"], suffixes=[".py", ".toml", ".html", ".css", ".js", ".j2", ".lock"])
class ChessGrpo(FlowSpec):
    """Train a chess policy from games and Stockfish evaluations, and measure by games whether GRPO improved it."""

    settings = Config("settings", default_value=DEFAULT_PRESET, parser=_parse, help="TOML: a preset and the settings that differ from it")
    fresh = Parameter("fresh", type=bool, default=False, is_flag=True, help="Share no outputs with earlier or later runs")
    resume_from = Parameter(
        "resume-from", default="", help="Policy: peak, champion, v7 (registered version), RUN (its peak) or RUN/STEP (GRPO step)"
    )

    @step
    @plainly
    def start(self):
        """Check everything that the run needs, and begin the run's record."""
        self.job = steps.start.start(self.settings, run=current.run_id, is_fresh=self.fresh, resume_from=self.resume_from)
        deployment.tag_run(self.job["settings"])
        self.tasks = task.parts(self.job, "boards")
        self.next(self.build_boards, foreach="tasks")

    @step
    @plainly
    def build_boards(self):
        """Find positions, and evaluate each position's legal moves."""
        # `task.run` finds inputs by the names `NAME_output`.
        self.build_boards_output = task.run(steps.build_boards.STEP, self)
        self.next(self.join_boards)

    @step
    @plainly
    def join_boards(self, inputs):
        """Join the tasks' boards into one dataset, cut to the configured numbers."""
        # The tasks' outputs differ, and Metaflow merges only equal values.
        self.merge_artifacts(inputs, include=["job"])
        self.join_boards_output = task.run(steps.join_boards.STEP, self, parts=[each.build_boards_output for each in inputs])
        self.next(self.check_boards)

    @card(type=OfflineCard.type, id="check_boards")
    @step
    @plainly
    def check_boards(self):
        """Validate the dataset, and stop the run if a check fails."""
        self.check_boards_output = task.run(steps.check_boards.STEP, self)
        self.next(self.pretrain, self.calibrate)

    @card(type=OfflineCard.type, id="pretrain", refresh_interval=1)
    @step
    @plainly
    def pretrain(self):
        """Imitate the played moves, and keep the weights with the lowest validation loss."""
        self.pretrain_output = task.run(steps.pretrain.STEP, self)
        self.next(self.baseline)

    @step
    @plainly
    def calibrate(self):
        """Rate the ladder's opponents."""
        self.calibrate_output = task.run(steps.calibrate.STEP, self)
        self.next(self.baseline)

    @card(type=OfflineCard.type, id="baseline", refresh_interval=1)
    @step
    @plainly
    def baseline(self, inputs):
        """Measure the pretrained policy's strength, before GRPO."""
        self.merge_artifacts(inputs)
        self.baseline_output = task.run(steps.baseline.STEP, self)
        self.next(self.finetune)

    @card(type=OfflineCard.type, id="finetune", refresh_interval=1)
    @step
    @plainly
    def finetune(self):
        """Train with GRPO; recover or stop if the policy's entropy falls too low."""
        self.finetune_output = task.run(steps.finetune.STEP, self)
        self.next(self.screen)

    @step
    @plainly
    def screen(self):
        """Select a candidate among the checkpoints by games."""
        self.screen_output = task.run(steps.screen.STEP, self)
        self.shares = task.parts(self.job, "selection")
        self.next(self.confirm, foreach="shares")

    @step
    @plainly
    def confirm(self):
        """Play fresh games to evaluate the candidate."""
        self.confirm_output = task.run(steps.confirm.STEP, self)
        self.next(self.select)

    @card(type=OfflineCard.type, id="select", refresh_interval=1)
    @step
    @plainly
    def select(self, inputs):
        """Choose candidate or pretrained policy as champion by these games."""
        self.merge_artifacts(inputs, exclude=["confirm_output"])
        self.select_output = task.run(steps.select.STEP, self, parts=[each.confirm_output for each in inputs])
        self.next(self.report)

    @card(type=OfflineCard.type, id="report")
    @step
    @plainly
    def report(self):
        """Write the report of the run."""
        self.report_output = task.run(steps.report.STEP, self)
        self.report_task = current.pathspec
        self.next(self.end)

    @step
    @plainly
    def end(self):
        """Print the verdict, and the addresses of champion, report and UI."""
        self.results, self.summary = steps.end.end(self)
        deployment.tag_run(self.job["settings"], verdict=self.results["decision"]["verdict"])
        print(self.summary)


if __name__ == "__main__":
    deployment.main(ChessGrpo)
