"""docs/aws.md as somebody types it: its blocks in order, new shells where the page says so, to the champion on the laptop.

AWS's own part is played by stubs: the programs `aws` and `docker`. Two more are stubs because of where this runs: `git`, whose clone
would need a commit, and `make setup`, whose environment is this one. The slow tests have the stand-in for Batch behind them, with the
stack that moto creates from the template. They leave out the check of AWS's answers (tests/steps/preflight/test_batch.py), the tunnel, and
further runs of the same kind.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import botocore.session
import pytest
from botocore import xform_name
from created_stack import GIVEN, Created
from stack_rules import Template, read_stack

from grpo.settings.tree import read_settings
from infra.batch_standin import BatchJob, StandIn, batch_standin, refusal
from infra.mlflow_server import mlflow_server
from infra.stack_variables import Outputs, profile, shell_file

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "aws.md"
FILE: Final = ". ~/.chess-grpo/chess-grpo.env\n"
CANARY: Final = "canary-of-the-jobs-account"
SHOWN: Final = ("STACK", "METAFLOW_PROFILE", "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_PASSWORD", "CHESS_GRPO_SHARED")
"""Variables that a stub records."""
STUB: Final = r"""#!/bin/bash
record=$(
    printf '%s' "${0##*/}" "${@/#/$'\x1f'}"
    printf '\x1e'
    for name in SHOWN; do printf '%s\x1f' "${!name-}"; done
    printf '\x1d'
)
printf '%s' "$record" >>"$CALLS" # At once: two may call at a time.
case "${0##*/} ${1-} ${2-}" in
"aws sts get-caller-identity") echo 123456789012 ;;
"aws secretsmanager get-secret-value") cat "$PREPARED/secret.json" ;;
"docker login "*) cat >/dev/null ;;
"git rev-parse --short") echo 0123abc ;;
"make setup ") mkdir -p .venv && cp -r "$PREPARED/bin" .venv/bin ;;
"python -m infra.stack_variables") cp -r "$PREPARED/home/." ~ ;;
esac
""".replace("SHOWN", " ".join(SHOWN))
STUBS: Final = ("aws", "docker", "make", "git")
HAND_WRITTEN: Final = {
    # Commands of the AWS CLI that are no operation of an API.
    ("cloudformation", "deploy"): {"stack-name", "template-file", "capabilities", "tags", "parameter-overrides"},
    ("cloudformation", "wait"): {"stack-name"},
    ("ecr", "get-login-password"): set(),
    ("s3", "rm"): {"recursive"},
    ("logs", "tail"): set(),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A program that a block called."""

    words: list[str]
    variables: dict[str, str]


def blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def shells() -> list[str]:
    """Return what is typed into each shell: all before the file of variables into one, and each block behind it into a new one."""
    found = blocks()
    first = next(number for number, block in enumerate(found) if block.startswith(FILE))
    return ["".join(found[:first]), *(block if block.startswith(FILE) else FILE + block for block in found[first:])]


def typed(text: str, cwd: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Type a text into a new bash, which ends at the first command that fails and at any variable that is not set."""
    return subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def template() -> Template:
    return read_stack()


@pytest.fixture(scope="module")
def outputs(template: Template) -> Outputs:
    """The template's outputs with values that nobody reads, but for those of the addresses."""
    named = {row["Description"]: f"of-{name}" for name, row in template["Outputs"].items()}
    named["MLFLOW_TRACKING_URI"] = template["Outputs"]["TrackingUri"]["Value"]["Fn::If"][1]
    variables = {name: value for name, value in named.items() if re.fullmatch(r"[A-Z0-9_]+", name)}
    others = {name: f"of-{name}" for name, row in template["Outputs"].items() if row["Description"] not in variables}
    return Outputs(variables=variables, others=others)


def make_stubs(folder: Path, names: tuple[str, ...]) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def calls(outputs: Outputs, tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    """Every program that the page's blocks call when all of them are typed, in order."""
    folder = tmp_path_factory.mktemp("page")
    clone, home, prepared = folder / "clone", folder / "home", folder / "prepared"
    for path in (clone, home, prepared / "home" / ".chess-grpo", prepared / "home" / ".metaflowconfig"):
        path.mkdir(parents=True)
    make_stubs(prepared / "bin", ("python", "chess-grpo"))
    make_stubs(clone / "infra", ("tunnel.sh",))
    (prepared / "secret.json").write_text(json.dumps({"MLFLOW_TRACKING_USERNAME": "jobs", "MLFLOW_TRACKING_PASSWORD": CANARY}))
    (prepared / "home" / ".chess-grpo" / "chess-grpo.env").write_text(shell_file("chess-grpo", outputs))
    (prepared / "home" / ".metaflowconfig" / "config_chess-grpo.json").write_text(profile(outputs))
    path = f"{make_stubs(folder / 'bin', STUBS)}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(home), "CALLS": str(folder / "calls"), "PREPARED": str(prepared)}
    for text in shells():
        done = typed(text, clone, environment)
        assert done.returncode == 0, f"{text}\n{done.stderr}"
    records = (folder / "calls").read_text().split("\x1d")[:-1]
    found = []
    for record in records:
        words, _, variables = record.partition("\x1e")
        found.append(Call(words=words.split("\x1f"), variables=dict(zip(SHOWN, variables.split("\x1f"), strict=False))))
    return found


def test_no_word_of_a_command_is_a_variable_that_was_lost(calls: list[Call]) -> None:
    assert len(calls) > 40
    for call in calls:
        assert all(call.words), call
        assert not any(word.startswith(("=", ":", "/chess-grpo:")) or word.endswith(("=", "-")) for word in call.words), call


def test_whatever_is_called_after_the_variables_were_written_has_them_in_its_own_shell(calls: list[Call]) -> None:
    written = next(number for number, call in enumerate(calls) if call.words[1:3] == ["-m", "infra.stack_variables"])
    later = [call for call in calls[written + 1 :] if call.words[:2] != ["aws", "secretsmanager"]]
    assert len(later) > 15
    for call in later:
        assert call.variables == {
            "STACK": "chess-grpo",
            "METAFLOW_PROFILE": "chess-grpo",
            "MLFLOW_TRACKING_URI": "http://localhost:5000",
            "MLFLOW_TRACKING_PASSWORD": CANARY,
            "CHESS_GRPO_SHARED": "of-Shared",
        }, call.words


def test_the_environment_comes_first_then_a_small_run_with_a_gpu_then_the_results(calls: list[Call]) -> None:
    ours = [call.words for call in calls if call.words[0] in ("make", "chess-grpo", "tunnel.sh") or "flows/chess_grpo.py" in call.words]
    assert [words[:2] for words in ours[:2]] == [["make", "setup"], ["chess-grpo", "doctor"]]
    [first, second, *_] = [words for words in ours if words[-3:] == ["run", "--with", "batch"]]
    assert read_settings(first[first.index("settings") + 1]).resources.training.num_gpus == 1
    assert second == ["python", "flows/chess_grpo.py", "run", "--with", "batch"]
    results = [words[1] for words in ours[ours.index(second) :] if words[0] == "chess-grpo"]
    assert results[:4] == ["show", "card", "export", "match"]


def test_the_page_names_every_program_that_is_a_stub_here() -> None:
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith("| the page can be typed |")]
    assert [name for name in STUBS if f"`{name}`" not in row and f"`{name} " not in row] == []


def test_the_images_that_are_pushed_are_those_of_the_stack(calls: list[Call]) -> None:
    pushed = [call.words[2] for call in calls if call.words[:2] == ["docker", "push"]]
    [deploy] = [call.words for call in calls if call.words[:3] == ["aws", "cloudformation", "deploy"] and "--tags" in call.words]
    assert [f"CpuImage={pushed[0]}", f"GpuImage={pushed[1]}"] == deploy[deploy.index("--parameter-overrides") + 1 :][:2]
    assert pushed[0] == "123456789012.dkr.ecr.us-east-1.amazonaws.com/chess-grpo:cpu-0123abc"


def test_the_aws_cli_has_every_command_and_option_that_the_page_names(calls: list[Call]) -> None:
    inline = [shlex.split(text) for text in re.findall(r"`(aws [a-z][^`]*)`", " ".join(PAGE.read_text().split()))]
    commands = [call.words for call in calls if call.words[0] == "aws"] + [words for words in inline if len(words) > 2]
    assert len(commands) > 20
    session = botocore.session.get_session()
    for words in commands:
        service, operation = words[1:3]
        options = {word[2:] for word in words[3:] if word.startswith("--")} - {"query", "output", "region"}
        if (service, operation) in HAND_WRITTEN:
            assert options <= HAND_WRITTEN[service, operation], words
            continue
        model = session.get_service_model({"s3api": "s3"}.get(service, service))
        names = {xform_name(name).replace("_", "-"): name for name in model.operation_names}
        assert operation in names, words
        shape = model.operation_model(names[operation]).input_shape
        known = {xform_name(name).replace("_", "-") for name in (shape.members if shape is not None else ())}
        assert {option.removeprefix("no-") for option in options} <= known | options & known, words


def test_no_secret_and_nothing_of_metaflow_is_in_the_shells_file(outputs: Outputs) -> None:
    text = shell_file("chess-grpo", outputs)
    assert "METAFLOW_BATCH" not in text
    assert set(json.loads(profile(outputs))) == {name for name in outputs.variables if name.startswith("METAFLOW_")}
    assert not re.search(r"PASSWORD=['\"]?\w", text)
    for name in re.findall(r"\$\{?(STACK_\w+)", PAGE.read_text() + (ROOT / "infra" / "tunnel.sh").read_text()):
        assert f"export {name}=" in text, name


def test_the_tunnel_forwards_both_ports_again_and_again_and_ends_with_its_shell(tmp_path: Path) -> None:
    path = f"{make_stubs(tmp_path / 'bin', ('aws', 'sleep'))}:/usr/bin:/bin"
    log = tmp_path / "calls"
    environment = {"PATH": path, "CALLS": str(log), "PREPARED": str(tmp_path), "STACK": "mine", "STACK_DoorId": "i-1"}
    with subprocess.Popen([ROOT / "infra" / "tunnel.sh"], env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        while not log.exists() or log.read_text().count("start-session") < 5:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert set(re.findall(r"host=[^\x1e\x1f]*", log.read_text())) == {
        "host=metadata.mine.internal,portNumber=8080,localPortNumber=8080",
        "host=mlflow.mine.internal,portNumber=5000,localPortNumber=5000",
    }
    done = subprocess.run([ROOT / "infra" / "tunnel.sh"], env={"PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "source the file that infra.stack_variables wrote first" in done.stderr


# The whole page, on the stand-in.

REAL: Final = f"""#!/bin/bash
exec {shlex.quote(sys.executable)} "$@"
"""
COMMAND: Final = f"""#!/bin/bash
exec {shlex.quote(sys.executable)} -m steps.cli.main "$@"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Laptop:
    """A machine with a fresh clone, where the page's blocks down to the file of variables have been typed."""

    clone: Path
    environment: dict[str, str]
    standin: StandIn
    outputs: dict[str, str]
    secret: str
    """The jobs' account."""

    def type(self, text: str) -> str:
        """Type a block into a new shell, in a size that a test can wait for; return what it says."""
        done = typed(text.replace('"smoke"', '"test"'), self.clone, self.environment)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{text}\n{said[-6000:]}"
        assert json.loads(self.secret)["MLFLOW_TRACKING_PASSWORD"] not in said
        return said

    def check_jobs(self, jobs: list[BatchJob]) -> None:
        """Every step succeeded, and those that train went to the queue and had the image of GPU machines."""
        batch, trained = self.standin.client("batch"), {"pretrain", "finetune"}
        print({job.step: round(job.seconds) for job in jobs})
        assert {job.status for job in jobs} == {"SUCCEEDED"}
        assert {job.step for job in jobs} >= {*trained, "start", "confirm", "select", "report", "end"}
        for job in jobs:
            kind, parameter = ("gpu", "GpuImage") if job.step in trained else ("cpu", "CpuImage")
            assert job.variables[0]["AWS_BATCH_JQ_NAME"] == f"chess-grpo-{kind}", job.step
            [found] = batch.describe_jobs(jobs=[job.id])["jobs"]
            [definition] = batch.describe_job_definitions(jobDefinitions=[found["jobDefinition"]])["jobDefinitions"]
            assert definition["containerProperties"]["image"] == GIVEN[parameter], job.step

    def execute(self) -> tuple[str, list[BatchJob]]:
        """Wait for the state machine that was triggered, and lose its first machine of `check_boards`; return its run and its jobs."""
        states = self.standin.client("stepfunctions")
        [machine] = states.list_state_machines()["stateMachines"]
        lost: BatchJob | None = None
        while True:
            [execution] = states.list_executions(stateMachineArn=machine["stateMachineArn"])["executions"]
            jobs = [job for job in self.standin.jobs() if job.run_id == f"sfn-{execution['name']}"]
            found = next((job for job in jobs if job.step == "check_boards"), None)
            if lost is None and found is not None and "Task is starting." in found.log() and found.lose():
                lost = found
            if execution["status"] != "RUNNING":
                assert execution["status"] == "SUCCEEDED", "".join(job.log()[-3000:] for job in jobs[-2:])
                assert [job for job in jobs if job.attempt > 0] == [lost], "AWS Batch tries the job again, within the same state"
                return f"sfn-{execution['name']}", jobs
            time.sleep(0.2)


@pytest.fixture
def laptop(template: Template, tmp_path: Path) -> Iterator[Laptop]:
    clone, home, prepared = tmp_path / "clone", tmp_path / "home", tmp_path / "prepared"
    home.mkdir()
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    (prepared / "bin").mkdir(parents=True)
    for name, text in (("python", REAL), ("chess-grpo", COMMAND)):
        (prepared / "bin" / name).write_text(text)
        (prepared / "bin" / name).chmod(0o755)
    engine = os.environ.get("CHESS_GRPO_STOCKFISH")
    with (
        batch_standin(tmp_path / "standin", has_metadata_service=True, engine=Path(engine) if engine else None) as standin,
        mlflow_server(tmp_path / "mlflow") as tracking,
        pytest.MonkeyPatch.context() as patch,
    ):
        given = {name: value for name, value in standin.settings.items() if name.startswith("AWS_")}
        for name, value in given.items():
            patch.setenv(name, value)
        outputs = Created(template).outputs
        secret = standin.client("secretsmanager").get_secret_value(SecretId=outputs["CHESS_GRPO_SECRETS"])["SecretString"]
        (prepared / "secret.json").write_text(secret)
        ours = ("AWS_", "METAFLOW_", "MLFLOW_", "CHESS_GRPO_", "WANDB_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) or name == "CHESS_GRPO_STOCKFISH"}
        path = f"{make_stubs(tmp_path / 'bin', STUBS)}:{os.environ['PATH']}"
        environment = {**kept, **given, "PATH": path, "HOME": str(home), "CALLS": str(tmp_path / "calls"), "PREPARED": str(prepared)}
        environment["METAFLOW_S3_ENDPOINT_URL"] = standin.settings["METAFLOW_S3_ENDPOINT_URL"]
        laptop = Laptop(clone=clone, environment=environment, standin=standin, outputs=outputs, secret=secret)
        laptop.type(shells()[0].replace("us-east-1", given["AWS_DEFAULT_REGION"]))
        # Containers and this machine share one network: the private names and the tunnel's ports are their servers' addresses.
        service = standin.settings["METAFLOW_SERVICE_URL"]
        addresses = {"http://localhost:5000": tracking, "http://mlflow.chess-grpo.internal:5000": tracking}
        addresses |= {"http://localhost:8080/": service, "http://metadata.chess-grpo.internal:8080/": service}
        for file in (home / ".chess-grpo" / "chess-grpo.env", home / ".metaflowconfig" / "config_chess-grpo.json"):
            text = file.read_text()
            for name, address in addresses.items():
                text = text.replace(name, address)
            file.write_text(text)
        yield laptop


def block_with(words: str) -> str:
    """Return the first block that holds these words, as it is typed into a new shell."""
    return next(text for text in shells()[1:] if words in text)


@pytest.mark.prove  # A whole run.
@pytest.mark.skipif(bool(refusal()), reason=refusal())
def test_typed_from_a_fresh_clone_the_page_ends_with_the_champion_on_the_laptop(laptop: Laptop) -> None:
    laptop.type(block_with("num_gpus = 1' run --with batch"))
    laptop.check_jobs(laptop.standin.jobs())
    said = laptop.type(block_with("chess-grpo match"))
    assert "Results: no improvement shown" in said or "Results: better" in said
    assert (laptop.clone / "exported" / "weights.safetensors").exists()
    # The same by a state machine, executed by moto's interpreter: it finds what the first run made.
    laptop.type(block_with("step-functions create"))
    run, jobs = laptop.execute()
    laptop.check_jobs(jobs)
    assert run in laptop.type(f"{FILE}.venv/bin/chess-grpo show last")
