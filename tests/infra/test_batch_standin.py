"""Jobs of the stand-in for AWS Batch, straight through boto3: what they see, how they end, and that nothing is left of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.batch_standin import BatchJob, StandIn, batch_standin, container, refusal
from infra.batch_standin.jobs import SPOT_NOTICE
from infra.batch_standin.standin import FAN_OUTS

CANARY = "canary-of-the-launcher"
SECONDS = 300
Submit = Callable[..., BatchJob]

pytestmark = pytest.mark.skipif(bool(refusal()), reason=refusal())


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY", CANARY)
        with batch_standin(tmp_path_factory.mktemp("standin"), num_jobs=3, grace_seconds=0.5) as standin:
            yield standin


@pytest.fixture(scope="module")
def submit(standin: StandIn) -> Submit:
    """Submit a job as Metaflow does, one of several nodes too, and return it as soon as the stand-in has it."""
    batch = standin.client("batch")
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}]
    box = {"image": "any", "command": ["false"], "resourceRequirements": needs, "environment": [{"name": "OF", "value": "definition"}]}
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:1", "container": box}]}
    one = batch.register_job_definition(jobDefinitionName="one", type="container", containerProperties=box)["jobDefinitionArn"]
    two = batch.register_job_definition(jobDefinitionName="two", type="multinode", nodeProperties=nodes)["jobDefinitionArn"]

    def submit(
        script: str, *, other: str | None = None, queue: str = "on-demand", seconds: int | None = None, **variables: str
    ) -> BatchJob:
        def overrides(script: str) -> dict[str, Any]:
            environment = [{"name": name, "value": value} for name, value in variables.items()]
            return {"command": ["bash", "-c", script], "environment": environment, "resourceRequirements": [{"type": "GPU", "value": "1"}]}

        given: dict[str, Any] = {"timeout": {"attemptDurationSeconds": seconds}} if seconds else {}
        if other is None:
            given |= {"jobDefinition": one, "containerOverrides": overrides(script)}
        else:
            rows = [{"targetNodes": f"{node}:{node}", "containerOverrides": overrides(text)} for node, text in enumerate((script, other))]
            given |= {"jobDefinition": two, "nodeOverrides": {"nodePropertyOverrides": rows}}
        found = batch.submit_job(jobName="job", jobQueue=queue, **given)["jobId"]
        wait_until(lambda: any(job.id == found for job in standin.jobs()))
        return next(job for job in standin.jobs() if job.id == found)

    return submit


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def ended(job: BatchJob) -> BatchJob:
    wait_until(lambda: job.is_over)
    return job


def saying(job: BatchJob, word: str, node: int = 0) -> BatchJob:
    wait_until(lambda: word in job.log(node))
    return job


def described(standin: StandIn, job: BatchJob) -> dict[str, Any]:
    [found] = standin.client("batch").describe_jobs(jobs=[job.id])["jobs"]
    return dict(found)


def test_a_job_sees_its_own_variables_and_what_batch_gives_and_no_other(standin: StandIn, submit: Submit) -> None:
    job = ended(submit("env -0 | tr '\\0' '\\n'", MINE="mine", OF="override"))
    seen = dict(line.split("=", 1) for line in job.log().splitlines())
    assert seen["MINE"] == "mine"
    assert seen["OF"] == "override"
    assert seen["HOME"] == "/home/job"
    assert seen["AWS_BATCH_JOB_ID"] == job.id
    given = {"AWS_BATCH_JOB_ATTEMPT", "AWS_BATCH_CE_NAME", "AWS_BATCH_JQ_NAME", "AWS_BATCH_JOB_ID", "AWS_EXECUTION_ENV", "AWS_ENDPOINT_URL"}
    given |= {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "ECS_CONTAINER_METADATA_URI_V4",
        "METAFLOW_SKIP_INSTALL_DEPENDENCIES",
        "CHESS_GRPO_DEVICE",
    }
    assert set(seen) == {"MINE", "OF", "PATH", "HOME", "LANG", "PWD", "SHLVL", "_"} | given


def test_a_job_works_with_the_credentials_of_its_role_not_the_launchers(submit: Submit) -> None:
    script = "import boto3; s = boto3.Session(); print(s.get_credentials().access_key, s.client('s3').list_buckets()['Buckets'][0]['Name'])"
    job = ended(submit(f'python -c "{script}"', AWS_DEFAULT_REGION="eu-central-1"))
    assert job.log().split() == ["ASIA-STAND-IN-ROLE", "chess-grpo-stand-in"]


def test_the_launchers_packages_and_files_are_not_there(standin: StandIn, submit: Submit, tmp_path: Path) -> None:
    secret = tmp_path / "store"
    secret.write_text(CANARY)
    places = [secret, Path(__file__), Path.cwd() / "pyproject.toml", Path.home(), standin.folder]
    opens = "\n".join(f"tell(lambda: os.listdir({str(place)!r}) if {place.is_dir()} else open({str(place)!r}).read())" for place in places)
    script = (
        "import os, sys\ndef tell(act):\n    try: print(act())\n    except Exception as error: print(type(error).__name__)\n"
        f"tell(lambda: __import__('grpo'))\ntell(lambda: __import__('boto3').__name__)\n{opens}"
    )
    lines = ended(submit('python -c "$SCRIPT"', SCRIPT=script)).log().splitlines()
    assert lines[:5] == ["ModuleNotFoundError", "boto3", *["FileNotFoundError"] * 3]
    # The interpreter may lie in the user's home; of the folders above it nothing else is seen.
    above = [Path(sys.base_prefix).relative_to(Path.home()).parts[0]] if Path(sys.base_prefix).is_relative_to(Path.home()) else []
    assert lines[5] in (str(above), "FileNotFoundError", "[]")
    assert lines[6] == "FileNotFoundError"


def test_a_job_that_takes_too_long_is_ended(standin: StandIn, submit: Submit) -> None:
    job = ended(submit("sleep 600; true", seconds=1))
    assert (job.status, job.exit_code, job.status_reason) == ("FAILED", 137, "Job attempt duration exceeded timeout")


def test_a_shell_as_first_process_hands_no_sigterm_on_and_is_killed_in_the_end(standin: StandIn, submit: Submit) -> None:
    job = saying(submit("(trap 'echo told' TERM; echo waits; sleep 600 & wait); true"), "waits")
    standin.client("batch").terminate_job(jobId=job.id, reason="asked to")
    ended(job)
    assert (job.status, job.exit_code, job.status_reason) == ("FAILED", 137, "asked to")
    assert "told" not in job.log()


def test_a_first_process_that_heeds_sigterm_ends_with_its_own_code(standin: StandIn, submit: Submit) -> None:
    script = "import signal, sys; signal.signal(15, lambda *_: sys.exit(75)); print('waits'); signal.pause()"
    job = saying(submit(f'exec python -u -c "{script}"'), "waits")
    standin.client("batch").terminate_job(jobId=job.id, reason="asked to")
    assert ended(job).exit_code == 75
    assert job.status == "FAILED"


def test_jobs_wait_for_a_place_and_may_be_cancelled_there(standin: StandIn, submit: Submit) -> None:
    running = [saying(submit("echo runs; sleep 600; true"), "runs") for _ in range(3)]
    waiting = submit("echo never")
    wait_until(lambda: waiting.status == "RUNNABLE")
    standin.client("batch").cancel_job(jobId=waiting.id, reason="not wanted")
    assert ended(waiting).status_reason == "not wanted"
    assert waiting.log() == ""
    last = submit("echo ran")
    assert running[0].lose()
    assert ended(last).log() == "ran\n"
    for job in running[1:]:
        job.lose()


def test_a_lost_machine_is_told_as_batch_tells_it(standin: StandIn, submit: Submit) -> None:
    job = saying(submit("trap 'echo told' TERM; echo runs; (sleep 600 & sleep 600); true"), "runs")
    assert job.lose()
    ended(job)
    assert (job.status, job.exit_code) == ("FAILED", None)
    assert described(standin, job)["statusReason"] == f"Host EC2 (instance i-{job.id[:8]}) terminated."
    assert "told" not in job.log()
    assert not job.lose()


def test_a_spot_notice_is_a_file_that_the_job_can_see(submit: Submit) -> None:
    script = f"echo runs; while [ ! -e {SPOT_NOTICE} ]; do sleep 0.02; done; echo noticed; exit 75"
    job, other = saying(submit(script), "runs"), saying(submit("echo runs; sleep 600; true"), "runs")
    assert job.notice()
    assert ended(job).exit_code == 75
    assert "noticed" in job.log()
    assert not Path(SPOT_NOTICE).exists()
    assert not job.notice()
    other.lose()


def test_nodes_know_of_each_other_and_the_main_ones_end_is_the_jobs(submit: Submit) -> None:
    names = ("NODE_INDEX", "NUM_NODES", "MAIN_NODE_INDEX", "MAIN_NODE_PRIVATE_IPV4_ADDRESS")
    tell = "echo " + " ".join(f"$AWS_BATCH_JOB_{name}" for name in names)
    reach = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    job = ended(submit(f'{tell}; python -c "{reach}"; exit 3', other=f"{tell}; sleep 600; true"))
    assert job.log().split() == ["0", "2", "0", "127.0.0.1"]
    assert job.log(1).split() in (["1", "2", "0", "127.0.0.1"], [])  # The main node may have ended before it began.
    assert (job.status, job.exit_code) == ("FAILED", 3)


def test_a_job_of_several_nodes_is_refused_on_spot_machines(submit: Submit) -> None:
    with pytest.raises(Exception, match="Multi-node parallel jobs aren't supported on compute environments that use Spot Instances"):
        submit("true", other="true", queue="cpu-spot")


def machine_of(script: str) -> dict[str, Any]:
    """A state machine as Metaflow makes them: a fan-out's size from a table, jobs with several attempts, parts of their answers."""
    job = {"JobName": "job", "JobQueue": "on-demand", "JobDefinition": "one", "RetryStrategy": {"Attempts": 2}}
    overrides = {"Command": ["bash", "-c", script], "Environment": [{"Name": "INDEX", "Value.$": "$.Index"}]}
    table = {"TableName": FAN_OUTS, "Key": {"pathspec": {"S": "all"}}, "ConsistentRead": True, "ProjectionExpression": "sizes"}
    work = {
        "Type": "Task",
        "Resource": "arn:aws:states:::batch:submitJob.sync",
        "Parameters": {**job, "Parameters": {"run_id.$": "$$.Execution.Name"}, "ContainerOverrides": overrides},
        "OutputPath": "$.['JobId', 'Parameters']",
        "End": True,
    }
    sizes = {"Type": "Task", "Resource": "arn:aws:states:::dynamodb:getItem", "Parameters": table, "ResultPath": "$.Result", "Next": "all"}
    every = {
        "Type": "Map",
        "ItemsPath": "$.Result.Item.sizes.NS",
        "Parameters": {"Index.$": "$$.Map.Item.Value"},
        "Iterator": {"StartAt": "work", "States": {"work": work}},
        "End": True,
    }
    return {"StartAt": "sizes", "States": {"sizes": sizes, "all": every}}


def executed(standin: StandIn, script: str) -> tuple[dict[str, Any], list[BatchJob]]:
    """Execute a state machine to its end; return the execution and its jobs."""
    states, before = standin.client("stepfunctions"), len(standin.jobs())
    given = {"definition": json.dumps(machine_of(script)), "roleArn": standin.settings["METAFLOW_SFN_IAM_ROLE"]}
    machine = states.create_state_machine(name=f"machine-{before}", **given)
    execution = states.start_execution(stateMachineArn=machine["stateMachineArn"])["executionArn"]
    wait_until(lambda: states.describe_execution(executionArn=execution)["status"] != "RUNNING")
    return states.describe_execution(executionArn=execution), standin.jobs()[before:]


def test_a_state_machine_runs_its_jobs_and_batch_tries_them_again(standin: StandIn, submit: Submit) -> None:
    standin.client("dynamodb").put_item(TableName=FAN_OUTS, Item={"pathspec": {"S": "all"}, "sizes": {"NS": ["0", "1"]}})
    submit("true")  # Whose definition the state machines use.
    done, jobs = executed(standin, 'echo "$INDEX: $AWS_BATCH_JOB_ATTEMPT"; [ "$INDEX$AWS_BATCH_JOB_ATTEMPT" != 11 ]')
    assert done["status"] == "SUCCEEDED"
    assert {job.id: {"JobId": job.id, "Parameters": {"run_id": done["name"]}} for job in jobs} == {
        row["JobId"]: row for row in json.loads(done["output"])
    }
    assert sorted((job.log(), job.attempt, job.status) for job in jobs) == [("0: 1\n", 0, "SUCCEEDED"), ("1: 1\n1: 2\n", 1, "SUCCEEDED")]
    failed, jobs = executed(standin, "exit 3")
    assert failed["status"] == "FAILED"
    assert {(job.attempt, job.exit_code) for job in jobs} == {(1, 3)}


def test_nothing_of_the_launchers_is_in_logs_jobs_or_objects(standin: StandIn, submit: Submit) -> None:
    ended(submit("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; true"))
    assert os.environ["CANARY"] == CANARY
    texts = [path.read_text(errors="replace") for path in standin.folder.rglob("*") if path.is_file()]
    texts += [repr((job.variables, described(standin, job))) for job in standin.jobs()]
    assert texts
    assert not [text for text in texts if CANARY in text]


def processes_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


DRIVER = """
import json, os, sys, time, boto3
batch = boto3.client("batch")
needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "512"}]
box = {"image": "any", "command": ["false"], "resourceRequirements": needs}
batch.register_job_definition(jobDefinitionName="one", type="container", containerProperties=box)
script = "trap '' TERM; echo runs; setsid sleep 600 & sleep 600; true"
overrides = {"command": ["bash", "-c", script], "environment": [{"name": "MARK", "value": sys.argv[1]}]}
jobs = [batch.submit_job(jobName="job", jobQueue="cpu-spot", jobDefinition="one", containerOverrides=overrides)["jobId"] for _ in range(3)]
while [job["status"] for job in batch.describe_jobs(jobs=jobs)["jobs"]].count("RUNNING") < 2:
    time.sleep(0.02)
print(json.dumps(dict(os.environ)), flush=True)
if sys.argv[2] == "killed":
    time.sleep(600)
sys.exit(7)
"""


@pytest.mark.parametrize("ending", ["ended", "killed"])
def test_the_command_runs_in_the_stand_ins_settings_and_no_process_is_left_however_it_ends(ending: str, tmp_path: Path) -> None:
    mark = f"mark-{ending}-{os.getpid()}"
    ours = ["-m", "infra.batch_standin", "--folder", str(tmp_path), "--", sys.executable, "-c", DRIVER, mark, ending]
    environment = {**os.environ, "PYTHONPATH": ".", "AWS_PROFILE": "mine", "METAFLOW_PROFILE": "mine"}
    with subprocess.Popen([sys.executable, *ours], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = json.loads(process.stdout.readline())
        if ending == "killed":
            assert processes_with(f"MARK={mark}")
            process.kill()
        assert process.wait() == (7 if ending == "ended" else -signal.SIGKILL)
        wait_until(lambda: not processes_with(f"MARK={mark}"))
        assert f"the jobs' logs are in {tmp_path / 'logs'}" in process.stderr.readline()
    assert seen["AWS_ENDPOINT_URL"] == seen["METAFLOW_S3_ENDPOINT_URL"]
    assert not {"AWS_PROFILE", "METAFLOW_PROFILE"} & set(seen)


# As on a busy machine, where a container may come up after the stand-in was killed.
SLOW_UNSHARE = """#!/bin/sh
exec 3<&0
(until [ -e '{folder}/gone' ]; do sleep 0.02; done; exec /usr/bin/unshare "$@" <&3) &
exec 3<&-
touch '{folder}/begun'
wait
"""
ONE_CONTAINER = """
import sys
from pathlib import Path
from infra.batch_standin.container import Container, make_image
folder, mark = Path(sys.argv[1]), sys.argv[2]
image = make_image(folder, hidden=(), variables={"PATH": f"{folder}:/usr/bin:/bin"})
Container(image, folder / "container", command=["sh", "-c", "echo runs"], variables={"MARK": mark}, log=folder / "log").wait()
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_container_that_comes_up_after_the_stand_in_was_killed_runs_nothing(is_killed: bool, tmp_path: Path) -> None:
    mark, slow = f"mark-slow-{is_killed}-{os.getpid()}", tmp_path / "unshare"
    slow.write_text(SLOW_UNSHARE.format(folder=tmp_path))
    slow.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": "."}
    with subprocess.Popen([sys.executable, "-c", ONE_CONTAINER, str(tmp_path), mark], env=environment) as process:
        wait_until((tmp_path / "begun").exists)
        # Time to write all that it would write in advance.
        time.sleep(1)
        if is_killed:
            process.kill()
            process.wait()
        (tmp_path / "gone").touch()
    wait_until(lambda: not processes_with(f"MARK={mark}"))
    assert (tmp_path / "log").exists() == (not is_killed)


def test_a_machine_without_namespaces_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_NAMESPACES", ("--no-such-namespace",))
    reason = refusal.__wrapped__()
    assert "unshare: unrecognized option '--no-such-namespace'" in reason
    assert "it takes a kernel that lets us `unshare --no-such-namespace`" in reason
