"""The commands of docs/aws.md, in an account of moto: from the queues to a policy, with a machine that is lost on the way."""

import itertools
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from batch_standin import ACCOUNT, BUCKET, StandIn, batch_standin
from canary import files_with, holds
from page_code import DOCS, blocks
from presets import TEST
from real_flow import FLOW, ROOT
from toggled_server import ToggledServer

import infra.pages
from steps import STEPS

PAGE = "aws.md"
CANARY = "canary-d1b54a32d192ed03"
SHARED = "metaflow/chess-grpo"
NOT_RUN = (
    *("aws ecr get-login-password | docker login", "docker build", "docker compose"),
    *("curl ", "aws cloudformation deploy --stack-name metaflow", "out() {"),
    "aws service-quotas request-service-quota-increase",
    *('  "METAFLOW_DEFAULT_METADATA"', '  "METAFLOW_SERVICE_'),
)
"""First words of lines that need docker, Metaflow's stack or service, or what moto lacks. The test runs all other commands of the page."""
PUSH = "docker push $REGISTRY/chess-grpo:"
PUT = (
    "aws ecr put-image --repository-name chess-grpo --image-manifest"
    """ '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": []}' --image-tag """
)
OUTPUTS = {
    "MetaflowDataStoreS3Url": f"s3://{BUCKET}/metaflow",
    "MetaflowDataToolsS3Url": f"s3://{BUCKET}/metaflow/data",
    "ECSJobRoleForBatchJobs": f"arn:aws:iam::{ACCOUNT}:role/role",
}
CONFIGURATION = "~/.metaflowconfig"


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    assert (DOCS / PAGE).read_text() == infra.pages.pages()[PAGE], "python -m infra.pages"


def test_at_a_board_a_second_a_million_seconds_are_278_hours_and_dollars(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BOARDS_A_SECOND": 1, "SURPLUS": 1.0, "MACHINE_PRICE": 1.0, "NUM_BOARDS": (1_000_000,)}.items():
        monkeypatch.setattr(infra.pages, name, value)
    one, sixteen, *_, dollars = infra.pages.costs()
    assert (one[2], sixteen[2], dollars[2]) == ("277.8 h", "17.4 h", "277.78")


def script(tracking: str, outputs: Mapping[str, str]) -> str:
    """Return the page's commands as one script for a folder that is not the checkout, with settings of a tiny run.

    `outputs`: of Metaflow's stack, which the page's function `out` would ask for.
    """
    lines = re.sub(r"\\\n\s*", "", "".join(blocks(PAGE, "bash"))).splitlines()
    assert all(any(line.startswith(start) for line in lines) for start in NOT_RUN)
    text = "\n".join(line for line in lines if not line.startswith(NOT_RUN))
    here = {
        PUSH: PUT,
        ".venv/bin/": f"{sys.prefix}/bin/",
        "infra/": f"{ROOT}/infra/",
        "git ": f"git -C {ROOT} ",
        CONFIGURATION: "$METAFLOW_HOME",
        "https://mlflow.example.org": tracking,
        '"smoke"': f'"{TEST}"',
        "flows/chess_grpo.py run": f"flows/chess_grpo.py --config-value settings 'preset = \"{TEST}\"' run",
        "flows/chess_grpo.py": str(FLOW),
    }
    for on_the_page, instead in here.items():
        assert on_the_page in text
        text = text.replace(on_the_page, instead)
    cases = "".join(f"{name}) echo {value};; " for name, value in outputs.items())
    return f"set -eux -o pipefail\nout() {{ case $1 in {cases}esac; }}\n{text}\n"


def restored() -> str:
    """Return the page's command that sets its variables in a new shell."""
    [command] = re.findall(rf"`(source {CONFIGURATION}/\S+)`", (DOCS / PAGE).read_text())
    return str(command).replace(CONFIGURATION, "$METAFLOW_HOME")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the AWS CLI, in an environment of its own, with the package that moto's CloudFormation needs and ours has not."""
    folder = tmp_path_factory.mktemp("cli")
    venv.EnvBuilder(with_pip=True).create(folder)
    command = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "awscli", "openapi-spec-validator"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no AWS CLI, for no package index answers: {made.stderr[-300:]}")
    [site] = folder.glob("lib/python*/site-packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(site)])
        yield folder / "bin"


def lose_finetune(standin: StandIn) -> bool:
    """Kill the job of `finetune` once its first checkpoint is shared, and return whether that was now."""
    if not any(key.endswith("/index.json") for key in standin.keys(f"{SHARED}/progress/finetune/")):
        return False
    [job] = (job for job in standin.jobs if job.step == "finetune")
    job.kill()
    return True


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory, stockfish: str, cli: Path) -> Iterator[StandIn]:
    """The stand-in on which the page's commands have run, from a folder `cwd` beside that of the stand-in."""
    folder = tmp_path_factory.mktemp("batch")
    for name in ("mlflow", "cwd"):
        (folder / name).mkdir()
    [secret] = blocks(PAGE, "json")
    secrets = dict.fromkeys(("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"), CANARY)
    printed, given = folder / "cwd" / "printed.log", folder / "cwd" / "secret.json"
    given.write_text(secret.replace("...", CANARY))  # The page deletes it.
    with batch_standin(folder / "standin") as standin, ToggledServer(folder / "mlflow", host="0.0.0.0") as tracking:
        standin.client("iam").create_user(UserName="launcher")
        environment = standin.environment | secrets | {"LAUNCHER": "launcher"}
        environment["PATH"] += f":{cli}"
        # Another name of this machine than those that `run --with batch` refuses.
        address = tracking.address.replace("127.0.0.1", "127.0.0.2")
        command = ["bash", "-c", script(address, OUTPUTS | standin.network())]
        is_lost = False
        with printed.open("wb") as output:
            process = subprocess.Popen(command, cwd=printed.parent, env=environment, stdout=output, stderr=subprocess.STDOUT)
            while process.poll() is None:
                is_lost = is_lost or lose_finetune(standin)
                time.sleep(0.2)
        assert process.returncode == 0, printed.read_text()[-4000:]
        assert is_lost, "finetune ended before its machine could be lost"
        standin.environment |= environment
        yield standin


@pytest.mark.prove
def test_the_commands_make_the_queues_two_verdicts_and_a_resumed_run_and_export_the_champion(launched: StandIn) -> None:
    cwd = launched.folder.parent / "cwd"
    assert (cwd / "printed.log").read_text().count("] Verdict: ") == 3
    assert {path.name for path in (cwd / "exported").iterdir()} >= {"README.md", "policy.safetensors"}
    queues = launched.client("batch").describe_job_queues()["jobQueues"]
    assert {queue["jobQueueName"] for queue in queues} == {"chess-grpo-cpu", "chess-grpo-gpu"}
    assert {job.step for job in launched.jobs if job.queue == "chess-grpo-gpu"} == {"pretrain", "finetune"}
    assert {job.image.rpartition(":")[2][:4] for job in launched.jobs if job.queue == "chess-grpo-gpu"} == {"gpu-"}


@pytest.mark.prove
def test_every_step_is_a_job_and_the_lost_one_goes_on_from_its_progress(launched: StandIn) -> None:
    in_order = [job.step for job in launched.jobs if job.step != "calibrate"]  # It runs beside `pretrain`.
    assert [step for step, _ in itertools.groupby(in_order)] == 3 * [step for step in STEPS if step != "calibrate"]
    lost, retried, again, resumed = (job for job in launched.jobs if job.step == "finetune")
    assert {job.status for job in launched.jobs if job is not lost} == {"SUCCEEDED"}
    assert (lost.status, lost.attempt, retried.attempt) == ("FAILED", 0, 1)
    assert "resuming from step" in retried.log.read_text()
    assert [": reusing version" in job.log.read_text() for job in (again, resumed)] == [True, False]


@pytest.mark.prove
def test_the_command_of_the_page_shows_a_tasks_log_from_another_shell(launched: StandIn) -> None:
    [logs] = re.findall(r"`\.venv/bin/python flows/chess_grpo\.py (.* logs) RUN/STEP`", (DOCS / PAGE).read_text())
    cwd = launched.folder.parent / "cwd"
    run, *_ = re.findall(r"run-id (\d+)", (cwd / "printed.log").read_text())
    text = f"set -eu\n{restored()}\n{sys.executable} {FLOW} {logs} {run}/finetune"
    done = subprocess.run(["bash", "-c", text], cwd=cwd, env=launched.environment, capture_output=True, text=True, check=False)
    assert "resuming from step" in done.stdout + done.stderr, done.stderr[-3000:]


@pytest.mark.prove
def test_a_job_has_its_own_variables_and_the_archive_and_nothing_of_the_launcher(launched: StandIn) -> None:
    assert {job.variables["CHESS_GRPO_STORE"] for job in launched.jobs} == {f"s3://{BUCKET}/{SHARED}"}
    # The tasks' code is in the folder of their job, and not in the checkout.
    assert all((job.folder / "metaflow" / "steps" / "batch" / "deployment.py").exists() for job in launched.jobs)
    assert not any((job.folder / "metaflow" / "tests").exists() for job in launched.jobs)
    left = {path.name for path in (launched.folder.parent / "cwd").iterdir()}
    assert left <= {".metaflow", ".chess_grpo", "exported", "printed.log"}


@pytest.mark.prove
def test_a_secret_of_the_launcher_is_found_nowhere(launched: StandIn) -> None:
    s3 = launched.client("s3")
    assert not [key for key in launched.keys("metaflow") if holds(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read(), CANARY)]
    assert files_with(launched.folder.parent, CANARY) == []
    assert CANARY not in repr([(job.command, job.variables) for job in launched.jobs])


@pytest.mark.prove
def test_the_teardown_leaves_nothing_that_the_page_made(launched: StandIn) -> None:
    """Runs last, because it deletes what the tests above read."""
    launched.client("logs").create_log_group(logGroupName="/aws/batch/job")
    teardown = "".join(block for block in blocks(PAGE, "sh") if "delete-stack" in block)
    text = "".join(line for line in teardown.splitlines(keepends=True) if "--stack-name metaflow" not in line)
    text = f"set -eux\n{restored()}\n{text.replace(CONFIGURATION, '$METAFLOW_HOME')}"
    done = subprocess.run(["bash", "-c", text], env=launched.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # Of a stack, moto deletes all but Batch's resources.
    assert launched.client("cloudformation").describe_stacks()["Stacks"] == []
    assert launched.client("ecr").describe_repositories()["repositories"] == []
    assert launched.client("secretsmanager").list_secrets()["SecretList"] == []
    assert launched.client("logs").describe_log_groups()["logGroups"] == []
    assert launched.client("s3").list_buckets()["Buckets"] == []
    assert [role["RoleName"] for role in launched.client("iam").list_roles()["Roles"]] == ["role"]
    assert launched.client("iam").list_role_policies(RoleName="role")["PolicyNames"] == []
    assert launched.client("iam").list_user_policies(UserName="launcher")["PolicyNames"] == []
    assert list(launched.folder.glob("*.json")) == []
