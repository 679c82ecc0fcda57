"""End-to-end demo on the AWS Batch stand-in: plain, with a spot interruption in `finetune`, resumed from the peak, and two runs at once.

`make batch-demo`, or python -m infra.batch_demo --preset test. The exit code is 0 only if all checks pass.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from infra.batch_standin import BatchJob, StandIn, batch_standin
from infra.canary import files_with, jobs_with, objects_with, secrets_with
from infra.mlflow_server import mlflow_server
from steps.batch.destination import GPU_IMAGE, GPU_QUEUE, TRACKING_INTERNAL

FLOW: Final = Path(__file__).resolve().parents[1] / "flows" / "chess_grpo.py"
SECRET: Final = "chess-grpo/tracking"  # noqa: S105 - Its name.
_HIDDEN: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY")
_GPUS: Final = "gpu-spot"
_FOR_GPUS: Final = {GPU_QUEUE: _GPUS, GPU_IMAGE: "image-with-cuda"}
_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """A finished run of the flow on the stand-in."""

    name: str
    exit_code: int
    printed: str
    jobs: tuple[BatchJob, ...]

    @property
    def run_id(self) -> str:
        """Metaflow's run id; empty when it never had a job."""
        return self.jobs[0].run_id if self.jobs else ""

    @property
    def num_retries(self) -> int:
        """Number of retries of all its tasks."""
        return sum(job.attempt > 0 for job in self.jobs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run left in the tracking and shared stores."""

    verdict: str
    output_hash: str
    """Hash of the output of `finetune`."""
    weights: str
    """Hash of the final policy's weights."""
    reused: frozenset[str]
    """Steps whose output was reused."""
    outputs: Mapping[str, frozenset[str]]
    """Step -> hashes of its outputs, one of each task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """The environment in which runs are launched: stand-in, tracking server, and a canary secret that must not leak."""

    folder: Path
    standin: StandIn
    tracking: str
    settings: str
    """The flow's settings, TOML."""
    canary: str

    def launch(
        self,
        name: str,
        *arguments: str,
        settings: str = "",
        datastore: str | None = None,
        watch: Callable[[list[BatchJob]], None] | None = None,
    ) -> Launched:
        """Run the user's command in an empty folder and wait for its end.

        Args:
            name: name of the folder and of the row in the table.
            arguments: arguments after `run --with batch`.
            settings: further settings, TOML.
            datastore: another location of Metaflow's data, and so of the shared store.
            watch: called repeatedly with the run's jobs so far.
        """
        cwd = self.folder / name
        cwd.mkdir()
        tracking = dict.fromkeys(("MLFLOW_TRACKING_URI", TRACKING_INTERNAL), self.tracking)  # Containers share this machine's network.
        variables = {**tracking, **_FOR_GPUS, "CHESS_GRPO_SECRETS": SECRET, **dict.fromkeys(_HIDDEN, self.canary)}
        if datastore is not None:
            variables["METAFLOW_DATASTORE_SYSROOT_S3"] = datastore
        told, shown, log, run_id = "\n".join(filter(None, (self.settings, settings))), 0, cwd / "printed.log", cwd / "run_id"
        command = [sys.executable, str(FLOW), "--config-value", "settings", told, "run", "--with", "batch", *arguments]
        say(f"{name}: python flows/chess_grpo.py --config-value settings {told!r} {' '.join(command[5:])}")
        command += ["--run-id-file", str(run_id)]

        def jobs() -> list[BatchJob]:
            """Return the run's jobs so far, and print those that have ended."""
            nonlocal shown
            number = run_id.read_text(encoding="utf-8") if run_id.exists() else ""
            found = [job for job in self.standin.jobs() if number and job.run_id == number]
            shown = _show(name, found, shown)
            return found

        environment = {name: value for name, value in self.standin.environment().items() if not name.startswith(("CHESS_GRPO_", "MLFLOW_"))}
        with log.open("wb") as output:
            # If this process is killed, the launcher gets SIGTERM and ends its jobs.
            guarded = ["setpriv", "--pdeathsig", "TERM", *command]
            process = subprocess.Popen(guarded, cwd=cwd, env=environment | variables, stdout=output, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    so_far = jobs()
                    if watch is not None:
                        watch(so_far)
                    time.sleep(_POLL_SECONDS)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        printed = log.read_text(encoding="utf-8", errors="replace")
        return Launched(name=name, exit_code=process.returncode, printed=printed, jobs=tuple(jobs()))

    def result(self, launched: Launched, *, datastore: str | None = None) -> Result:
        """Return a run's result. Raises DemoError when it has no verdict."""
        from mlflow.tracking import MlflowClient

        from steps.tracking.tags import EXPERIMENT, OUTPUT_HASH, STEP, VERSION

        client = MlflowClient(self.tracking, registry_uri=self.tracking)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        found = [] if experiment is None else client.search_runs([experiment.experiment_id], f"tags.`metaflow.run` = '{launched.run_id}'")
        tags: dict[str, Mapping[str, Any]] = {}
        outputs: dict[str, set[str]] = {}
        for run in found:
            if run.data.tags[STEP] == "flow" or OUTPUT_HASH in run.data.tags:
                tags[run.data.tags[STEP]] = run.data.tags
            if OUTPUT_HASH in run.data.tags:
                outputs.setdefault(run.data.tags[STEP], set()).add(run.data.tags[OUTPUT_HASH])
        verdict = tags.get("flow", {}).get("chess_grpo.verdict")
        if launched.exit_code != 0 or verdict is None or "finetune" not in tags:
            ended = f"{launched.name}: exit code {launched.exit_code}, no verdict"
            raise DemoError(f"{ended}; the end of its output:\n{launched.printed[-4000:]}")
        finetuned = tags["finetune"]
        bucket, _, prefix = (datastore or self.standin.datastore).removeprefix("s3://").partition("/")
        place = f"{prefix}/chess-grpo/outputs/finetune/{finetuned[VERSION]}/{finetuned[OUTPUT_HASH]}"
        s3 = self.standin.client("s3")

        def read(name: str) -> Any:
            return json.loads(s3.get_object(Bucket=bucket, Key=f"{place}/{name}")["Body"].read())

        report = read(f"files/{read('index.json')['files']['report.json']}")
        reused = frozenset(step for step, of in tags.items() if of.get("chess_grpo.reused") == "True")
        return Result(
            verdict=str(verdict),
            output_hash=finetuned[OUTPUT_HASH],
            weights=str(report["weights"]),
            reused=reused,
            outputs={step: frozenset(hashes) for step, hashes in outputs.items()},
        )

    def leaks(self) -> list[str]:
        """Return where the canary secret leaked to; the Secrets Manager and the launchers' memory do not count."""
        return [
            *files_with(self.folder, self.canary),
            *objects_with(self.standin, self.canary),
            *jobs_with(self.standin, self.canary),
        ]


class DemoError(PlainError, RuntimeError):
    """A check failed; the message says which."""


class SpotInterrupter:
    """Loses the machine of a run's first `finetune` once, as soon as its first checkpoint is in the shared store.

    Kills at random moments are `make soak`'s: on a busy machine, a time drawn from those of a short training may come after its end.
    """

    def __init__(self, standin: StandIn, datastore: str) -> None:
        """Look for checkpoints of runs with this datastore."""
        self._standin = standin
        self._bucket, _, self._prefix = datastore.removeprefix("s3://").partition("/")
        self.lost: BatchJob | None = None

    def watch(self, jobs: list[BatchJob]) -> None:
        """Check the run's jobs, and lose the machine when it is time."""
        job = next((job for job in jobs if job.step == "finetune" and job.attempt == 0), None)
        if job is None or job.is_over or self.lost is not None:
            return
        if self._has_saved_checkpoint() and job.lose():
            self.lost = job
            say(f"  {job.step}: its machine is lost after the first checkpoint")

    def _has_saved_checkpoint(self) -> bool:
        s3 = self._standin.client("s3")
        found = s3.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/chess-grpo/progress/finetune/")
        return any(row["Key"].endswith("/index.json") for row in found.get("Contents", []))


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def _show(run: str, jobs: list[BatchJob], shown: int) -> int:
    """Print a run's jobs that have ended, in order; return the number of printed jobs."""
    while shown < len(jobs) and jobs[shown].is_over:
        job = jobs[shown]
        ended = f"{job.status}, exit code {job.exit_code}, {job.seconds:.0f} s. {job.status_reason}"
        say(f"  {run}: {job.step} {job.task_id}, attempt {job.attempt + 1}: {ended}")
        shown += 1
    return shown


def run_at_once(stage: Stage, datastore: str) -> tuple[list[tuple[Launched, Result]], list[str]]:
    """Run two runs of a sweep at the same time on an empty shared store; return them, and the failed checks.

    They publish the same outputs up to `baseline`, and each its own from `finetune` on.
    """
    rates = {"one": "1e-3", "other": "5e-4"}
    with ThreadPoolExecutor(len(rates)) as threads:
        started = [
            threads.submit(stage.launch, name, settings=f"grpo.learning_rate = {rate}", datastore=datastore) for name, rate in rates.items()
        ]
        launched = [each.result() for each in started]
    runs = [(each, stage.result(each, datastore=datastore)) for each in launched]
    (_, one), (_, other) = runs
    problems = [f"{each.name}: {each.num_retries} tasks were retried, though no machine was lost" for each in launched if each.num_retries]
    choosing = {"screen", "confirm", "select", "report"}
    differing = {step for step in one.outputs if one.outputs[step] != other.outputs.get(step)}
    if differing != {"finetune", *choosing}:
        problems.append(f"at once: outputs differ of {', '.join(sorted(differing)) or 'no step'}, not of finetune and the steps after it")
    # A run of the same settings finds each output whole, because `fetch` compares every file with its hash. The steps after `finetune` are
    # done again where the registry has another champion by now.
    again = stage.launch("again", settings=f"grpo.learning_rate = {rates['one']}", datastore=datastore)
    found = stage.result(again, datastore=datastore)
    if missing := set(one.outputs) - choosing - found.reused:
        problems.append(f"again: {', '.join(sorted(missing))} not reused from the shared store")
    return [*runs, (again, found)], problems


def run_demo(stage: Stage) -> list[str]:
    """Run all, print a table, and return the failed checks."""
    elsewhere = f"{stage.standin.datastore}-2"
    problems: list[str] = []

    def check(holds: bool, what: str) -> None:
        if not holds:
            problems.append(what)

    plain = stage.launch("plain")
    first = stage.result(plain)
    check(plain.num_retries == 0, "plain: a task was retried, though no machine was lost")
    on_gpus = sorted({job.step for job in plain.jobs if job.variables[0]["AWS_BATCH_JQ_NAME"] == _GPUS})
    check(on_gpus == ["finetune", "pretrain"], f"plain: {', '.join(on_gpus) or 'nothing'} went to the queue of GPU machines")

    interrupter = SpotInterrupter(stage.standin, elsewhere)
    interrupted = stage.launch("interrupted", datastore=elsewhere, watch=interrupter.watch)
    second = stage.result(interrupted, datastore=elsewhere)
    check(interrupter.lost is not None, "interrupted: finetune ended before its machine could be lost")
    check(not second.reused, f"interrupted: {', '.join(sorted(second.reused))} came from the first run")
    attempts = [job for job in interrupted.jobs if job.step == "finetune"]
    check(len(attempts) == 2, f"interrupted: {len(attempts)} attempts of finetune, not 2")
    check("resuming from step" in attempts[-1].log(), "interrupted: the second attempt did not resume from a checkpoint")
    check(second.output_hash == first.output_hash, "interrupted: finetune's output differs")
    check(second.weights == first.weights, "interrupted: finetune's weights differ")

    resumed = stage.launch("resumed", "--resume-from", "peak")
    third = stage.result(resumed)
    check(resumed.num_retries == 0, "resumed: a task was retried, though no machine was lost")
    check(third.weights != first.weights, "resumed: the weights did not change")

    at_once, failed = run_at_once(stage, f"{stage.standin.datastore}-3")
    problems += failed

    leaks = stage.leaks()
    check(secrets_with(stage.standin, stage.canary) == [SECRET], "the search does not find the secret in the Secrets Manager")
    check(not leaks, f"the secret leaked to {', '.join(leaks)}")
    rows = [("run", "jobs", "retries", "finetune's output", "weights", "verdict")]
    for run, result in ((plain, first), (interrupted, second), (resumed, third), *at_once):
        rows.append((run.name, str(len(run.jobs)), str(run.num_retries), result.output_hash[:12], result.weights[:12], result.verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    say("\n" + "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows))
    say(f"leaks of the secret: {', '.join(leaks) or 'none'}")
    return problems


def main() -> int:
    """Run the demo; return 0 when all checks pass."""
    parser = argparse.ArgumentParser(prog="python -m infra.batch_demo", description=__doc__)
    parser.add_argument("--preset", default="smoke", help="smoke (the default) or test")
    parser.add_argument("--folder", type=Path, help="an empty or new folder for all output of the runs (default: a temporary one)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="batch-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    engine = os.environ.get("CHESS_GRPO_STOCKFISH")
    canary = f"canary-{secrets.token_hex(12)}"
    try:
        say(f"output of the runs: {folder}; logs of the jobs: {folder / 'standin' / 'logs'}")
        with (
            batch_standin(folder / "standin", engine=Path(engine) if engine else None) as standin,
            mlflow_server(folder / "mlflow") as tracking,
        ):
            standin.put_secret(SECRET, dict.fromkeys(_HIDDEN, canary))
            settings = f'preset = "{given.preset}"\nresources.training.num_gpus = 1'
            stage = Stage(folder=folder, standin=standin, tracking=tracking, settings=settings, canary=canary)
            problems = run_demo(stage)
    except PlainError as error:
        problems = [str(error)]
    for problem in problems:
        say(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
