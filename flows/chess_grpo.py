"""The Metaflow flow of the pipeline: boards, checks, pretraining, ladder, baseline, GRPO, selection, report.

.venv/bin/python flows/chess_grpo.py run
.venv/bin/python flows/chess_grpo.py run --with batch
.venv/bin/python flows/chess_grpo.py --config settings my.toml run --resume-from peak
.venv/bin/python flows/chess_grpo.py --config-value settings 'preset = "smoke"
grpo.learning_rate = 1e-3' run
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

# In a checkout only this folder is on the path; in a container the packages are beside this file.
_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "steps").is_dir() and str(_ROOT) not in sys.path:
    sys.path.insert(0, str(_ROOT))
if os.environ.get("METAFLOW_USER", "root") == "root":
    # Metaflow refuses to run as root, whichever variable names the user.
    os.environ["METAFLOW_USER"] = "chess-grpo" if os.environ.get("USER", "root") in ("", "root") else os.environ["USER"]
from steps.runtime.packages import require_packages  # noqa: E402

require_packages()
from grpo.base.errors import PlainError  # noqa: E402
from steps.batch.destination import prepare  # noqa: E402

try:
    for note in prepare(sys.argv[1:], os.environ):
        print(note, file=sys.stderr)
except PlainError as error:
    raise SystemExit(str(error)) from None
# Torch's idle threads would otherwise spin on cores that the engine needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent:
    # Before the slow imports: a process that renders a card imports for several seconds, and its task may end meanwhile.
    from steps.runtime.parent_death import end_with_parent

    end_with_parent(unwinds="batch" in sys.argv)

from metaflow import Config, FlowSpec, Parameter, card, current, package_sources, project, step  # noqa: E402

from grpo.settings.tree import DEFAULT_PRESET, ConfigError, read_settings  # noqa: E402
from steps.batch import deployment  # noqa: E402
from steps.cards.registry import draw_end, draw_start, finished_card, watch  # noqa: E402
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE  # noqa: E402
from steps.runtime.lazy_module import LazyModule  # noqa: E402
from steps.store.versions import describe_code  # noqa: E402

if TYPE_CHECKING:
    from steps.pipeline import dataset, end, evaluation, start, training
    from steps.tracking import launch
else:
    # Rendering a card runs this file, many times in a run; without these imports it takes a third of the time.
    # And a step imports only what it needs: torch takes seconds.
    start, dataset, training, evaluation, end = (
        LazyModule(f"steps.pipeline.{name}") for name in ("start", "dataset", "training", "evaluation", "end")
    )
    launch = LazyModule("steps.tracking.launch")

deployment.name_shared_store()


def plainly(body: Callable[..., None]) -> Callable[..., None]:
    """Print only the message of a PlainError, without a traceback, and exit with the code for Metaflow's retries."""

    @functools.wraps(body)
    def wrapped(*arguments: Any) -> None:
        try:
            with deployment.as_task(arguments[0]):
                body(*arguments)
        except PlainError as error:
            print(f"{body.__name__}: {error}", file=sys.stderr, flush=True)
            raise SystemExit(RESUMABLE if error.may_pass else NO_RETRY) from None

    return wrapped


def _parse(text: str) -> dict[str, Any]:
    """Return the settings as plain data; invalid ones end the command with their message."""
    try:
        return read_settings(text).model_dump(mode="json")
    except ConfigError as error:
        raise SystemExit(str(error)) from None


@project(name="chess_grpo")
@deployment.Deployment
@package_sources(["../steps", "../grpo", "../data_checks"], suffixes=[".py", ".toml", ".html", ".css", ".js"])
class ChessGrpo(FlowSpec):
    """Train a chess policy from games and Stockfish evaluations, and measure by games whether GRPO improved it."""

    settings = Config("settings", default_value=DEFAULT_PRESET, parser=_parse, help="TOML: a preset and the differences from it")
    code = Config("code", default_value="", parser=describe_code, help="Internal: the commit from which the run is launched")
    fresh = Parameter("fresh", type=bool, default=False, is_flag=True, help="Recompute every step's output, even if the store has it")
    resume_from = Parameter("resume-from", default="", help="peak, champion, v7 (a version), RUN or RUN/STEP: resume from it")
    allow = Parameter("allow", default="", help="With resume-from: changes to allow that are otherwise refused: engine, objective")

    @card(type="blank", id="start", refresh_interval=1)
    @step
    @plainly
    def start(self):
        """Run the preflight checks and create the MLflow run."""
        self.job = start.start(
            self.settings,
            self.code,
            metaflow_run=current.run_id,
            is_fresh=self.fresh,
            resume_from=self.resume_from,
            allow=self.allow,
        )
        draw_start(self.job)
        deployment.tag_run(launch.metaflow_tags(self.settings))
        self.tasks = list(range(self.settings.boards.num_tasks))
        self.next(self.build_boards, foreach="tasks")

    @card(type="blank", id="build", refresh_interval=1)
    @step
    @plainly
    def build_boards(self):
        """Find positions and evaluate every legal move of each."""
        card = watch("build_boards")
        self.part = card.finished(dataset.build_boards(self.job, self.input, [card]))
        self.next(self.join_boards)

    @card(type="blank", id="join", refresh_interval=1)
    @step
    @plainly
    def join_boards(self, inputs):
        """Join the parts into one dataset with exact quotas."""
        self.merge_artifacts(inputs, include=["job"])
        self.boards = watch("join_boards").finished(dataset.join_boards(self.job, [task.part for task in inputs]))
        self.next(self.check_boards)

    @card(type="blank", id="boards")
    @step
    @plainly
    def check_boards(self):
        """Validate the dataset, and stop the run if a check fails."""
        self.checks = watch("check_boards").finished(dataset.check_boards(self.job, self.boards))
        self.next(self.pretrain)

    @card(type="blank", id="pretrain", refresh_interval=1)
    @step
    @plainly
    def pretrain(self):
        """Imitate the moves played until the validation loss stops falling."""
        card = watch("pretrain", self.job["settings"])
        self.pretrained = card.finished(training.pretrain(self.job, self.boards, [card]))
        self.next(self.calibrate)

    @card(type="blank", id="ladder", refresh_interval=1)
    @step
    @plainly
    def calibrate(self):
        """Rate the opponents that strength is measured with."""
        card = watch("calibrate")
        self.calibrated = card.finished(evaluation.calibrate(self.job, [card]))
        self.next(self.baseline)

    @card(type="blank", id="baseline", refresh_interval=1)
    @step
    @plainly
    def baseline(self):
        """Measure the pretrained policy's strength before GRPO."""
        card = watch("baseline")
        self.baseline_report = card.finished(evaluation.baseline(self.job, self.boards, self.pretrained, self.calibrated, [card]))
        self.next(self.finetune)

    @card(type="blank", id="train", refresh_interval=1)
    @step
    @plainly
    def finetune(self):
        """Train with GRPO, and recover or stop when entropy becomes critical."""
        card = watch("finetune", self.job["settings"])
        finetuned = training.finetune(self.job, self.boards, self.pretrained, [card], on_assessed=card.assessed)
        self.finetuned = card.finished(finetuned)
        self.next(self.screen)

    @card(type="blank", id="screen", refresh_interval=1)
    @step
    @plainly
    def screen(self):
        """Select a candidate by games against the pretrained policy."""
        card = watch("screen")
        self.screened = card.finished(evaluation.screen(self.job, self._contest(), [card]))
        self.shares = list(range(self.settings.selection.num_tasks))
        self.next(self.confirm, foreach="shares")

    @card(type="blank", id="confirm", refresh_interval=1)
    @step
    @plainly
    def confirm(self):
        """Play fresh games to evaluate the candidate."""
        card = watch("confirm")
        confirmed = evaluation.confirm(self.job, self._contest(), self.screened, self.input, [card])
        self.confirmed = card.finished(confirmed)
        self.next(self.select)

    @card(type="blank", id="decision", refresh_interval=1)
    @step
    @plainly
    def select(self, inputs):
        """Choose the champion by the fresh games."""
        self.merge_artifacts(inputs, exclude=["confirmed"])
        precomputed = [self.screened, *(task.confirmed for task in inputs)]
        card = watch("select")
        self.selected = card.finished(evaluation.select(self.job, self._contest(), precomputed, [card]))
        self.next(self.report)

    @card(type="blank", id="report")
    @step
    @plainly
    def report(self):
        """Write the report of the run."""
        outputs = [self.boards, self.checks, self.pretrained, self.calibrated, self.baseline_report, self.finetuned, self.selected]
        self.reported = watch("report").finished(end.report(self.job, {output["step"]: output for output in outputs}))
        self.report_task = current.pathspec
        self.next(self.end)

    @card(type="blank", id="end")
    @step
    @plainly
    def end(self):
        """Print where champion, report and UI are."""
        self.results = end.results(self.job, self.selected, self.reported)
        # All of them: a resumed run is another one, whose `start` was not run again.
        deployment.tag_run(launch.metaflow_tags(self.settings, verdict=self.results["decision"]["verdict"]))
        self.summary = end.end(self.job, self.selected, self.reported, card=finished_card(self.report_task))
        print(self.summary)
        draw_end(lambda: end.overview(self.job, self.selected, self.reported))

    def _contest(self):
        return evaluation.SelectionOutputs(
            boards=self.boards, pretrained=self.pretrained, calibrated=self.calibrated, finetuned=self.finetuned
        )


if __name__ == "__main__":
    deployment.main(ChessGrpo)
