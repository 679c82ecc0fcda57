"""Metaflow's other routes: the flow compiles for those that can be compiled here, and asks each for the same things.

What runs the result (Argo, Step Functions, Airflow, Kubernetes) is not here; docs/aws.md says what that leaves unproven.
"""

import ast
import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from real_flow import FLOW

CANARY: Final = "canary-in-a-coal-mine"
CONFIDENTIAL: Final = ("MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MLFLOW_FLASK_SERVER_SECRET_KEY")
GIVEN: Final = {
    # What the stack's outputs set.
    "METAFLOW_DATASTORE_SYSROOT_S3": "s3://bucket/metaflow",
    "METAFLOW_DATATOOLS_S3ROOT": "s3://bucket/metaflow/data",
    "METAFLOW_BATCH_JOB_QUEUE": "cpu",
    "METAFLOW_BATCH_CONTAINER_IMAGE": "registry/cpu:1",
    "METAFLOW_ECS_S3_ACCESS_IAM_ROLE": "arn:aws:iam::123456789012:role/job",
    "CHESS_GRPO_BATCH_GPU_QUEUE": "gpu",
    "CHESS_GRPO_BATCH_GPU_IMAGE": "registry/gpu:1",
    "CHESS_GRPO_SECRETS": "arn:aws:secretsmanager:us-east-1:123456789012:secret:tracking",
    "MLFLOW_TRACKING_URI": "http://mlflow.chess-grpo.internal:5000",
    # What each route wants besides.
    "METAFLOW_KUBERNETES_CONTAINER_IMAGE": "registry/cpu:1",
    "METAFLOW_KUBERNETES_NAMESPACE": "chess",
    "METAFLOW_SFN_IAM_ROLE": "arn:aws:iam::123456789012:role/step-functions",
    "METAFLOW_SFN_DYNAMO_DB_TABLE": "foreach",
}
FORWARDED: Final = {
    "MLFLOW_TRACKING_URI": GIVEN["MLFLOW_TRACKING_URI"],
    "CHESS_GRPO_SECRETS": GIVEN["CHESS_GRPO_SECRETS"],
    "CHESS_GRPO_SHARED": "s3://bucket/metaflow/chess-grpo",
}
SETTINGS: Final = """preset = "smoke"
resources.num_retries = {num_retries}
resources.training.num_gpus = 1
resources.training.num_cpus = 3
resources.training.memory_mib = 9000
resources.training.max_minutes = 90
resources.boards.num_gpus = 0
resources.boards.num_cpus = 2
resources.boards.memory_mib = 5000
resources.boards.max_minutes = 20
"""
STEPS: Final = tuple(
    node.name
    for node in ast.walk(ast.parse(FLOW.read_text()))
    if isinstance(node, ast.FunctionDef)
    and any(isinstance(decorator, ast.Name) and decorator.id == "step" for decorator in node.decorator_list)
)


@dataclass(frozen=True)
class Route:
    """What one command printed or wrote."""

    output: str
    errors: str
    status: int

    @property
    def whole(self) -> str:
        return self.output + self.errors


class Cluster(BaseHTTPRequestHandler):
    """A Kubernetes that takes note of the jobs it is asked for, and refuses them."""

    jobs: Final[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.jobs.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(403, {"kind": "Status", "message": "this cluster runs nothing", "code": 403})

    def do_GET(self) -> None:
        self._answer(404, {"kind": "Status", "code": 404})

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True)
class Launcher:
    """A folder and an environment to launch the flow from, with stand-ins for S3, Batch and Kubernetes in it."""

    folder: Path
    environment: dict[str, str]

    def launch(self, commands: Mapping[str, Sequence[str]], *, num_retries: int) -> dict[str, Route]:
        """Run the flow's commands side by side."""
        options = ["--no-pylint", "--config-value", "settings", SETTINGS.format(num_retries=num_retries)]
        running = {
            name: subprocess.Popen(
                [sys.executable, str(FLOW), *options, *command],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for name, command in commands.items()
        }
        try:
            return {name: Route(*process.communicate(timeout=900), process.returncode) for name, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """One stand-in for all that is asked while the flow compiles."""
    from moto.server import ThreadedMotoServer

    folder = tmp_path_factory.mktemp("routes")
    aws = ThreadedMotoServer(port=0, verbose=False)
    cluster = ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    aws.start()
    threading.Thread(target=cluster.serve_forever, daemon=True).start()
    try:
        _, port = aws.get_host_and_port()
        (folder / "kubeconfig").write_text(json.dumps(_kubeconfig(cluster.server_port)))
        environment = _environment(folder, f"http://127.0.0.1:{port}")
        with pytest.MonkeyPatch.context() as patch:
            for name in ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.setenv(name, environment[name])
            patch.delenv("AWS_PROFILE", raising=False)
            _make_queues()
            boto3.client("s3").create_bucket(Bucket="bucket")
            yield Launcher(folder, environment)
    finally:
        cluster.shutdown()
        cluster.server_close()
        aws.stop()


@pytest.fixture(scope="module")
def routes(launcher: Launcher) -> dict[str, Route]:
    """The two routes that print what they would deploy."""
    commands = {"argo": ["argo-workflows", "create", "--only-json"], "step-functions": ["step-functions", "create", "--only-json"]}
    return launcher.launch(commands, num_retries=2)


@pytest.fixture(scope="module")
def airflow(launcher: Launcher) -> Route:
    """Airflow's route, with the file that it writes as its output."""
    dag = launcher.folder / "dag.py"
    compiled = launcher.launch({"airflow": ["airflow", "create", str(dag)]}, num_retries=2)["airflow"]
    assert compiled.status == 0, compiled.errors
    return Route(dag.read_text(), compiled.whole, compiled.status)


@pytest.fixture(scope="module")
def kubernetes(launcher: Launcher) -> Route:
    """A run whose first task is refused."""
    return launcher.launch({"kubernetes": ["run", "--with", "kubernetes"]}, num_retries=0)["kubernetes"]


def _environment(folder: Path, endpoint: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CHESS_GRPO_", "METAFLOW_", "MLFLOW_"))}
    return {
        **kept,
        **GIVEN,
        **dict.fromkeys(CONFIDENTIAL, CANARY),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "METAFLOW_S3_ENDPOINT_URL": endpoint,
        "METAFLOW_USER": "tester",
        "HOME": str(folder),
        "KUBECONFIG": str(folder / "kubeconfig"),
    }


def _kubeconfig(port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "nobody"}}],
        "current-context": "here",
    }


def _make_queues() -> None:
    """Make the queues, which Step Functions' route looks at while it compiles."""
    role = boto3.client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    network = boto3.client("ec2")
    [subnet] = network.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    [group] = network.describe_security_groups(Filters=[{"Name": "vpc-id", "Values": [subnet["VpcId"]]}])["SecurityGroups"]
    client = boto3.client("batch")
    profile = boto3.client("iam").create_instance_profile(InstanceProfileName="machine")["InstanceProfile"]["Arn"]
    made = client.create_compute_environment(
        computeEnvironmentName="machines",
        type="MANAGED",
        serviceRole=role,
        computeResources={
            "type": "SPOT",
            "allocationStrategy": "SPOT_PRICE_CAPACITY_OPTIMIZED",
            "minvCpus": 0,
            "maxvCpus": 4,
            "instanceTypes": ["c7i"],
            "subnets": [subnet["SubnetId"]],
            "securityGroupIds": [group["GroupId"]],
            "instanceRole": profile,
        },
    )["computeEnvironmentArn"]
    for name in ("cpu", "gpu"):
        client.create_job_queue(
            jobQueueName=name, state="ENABLED", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": made}]
        )


@pytest.fixture(scope="module")
def argo(routes: dict[str, Route]) -> dict[str, Any]:
    """Argo's templates by step."""
    assert routes["argo"].status == 0, routes["argo"].errors
    templates = json.loads(routes["argo"].output)["spec"]["templates"]
    return {template["name"].replace("-", "_"): template for template in templates}


@pytest.fixture(scope="module")
def states(routes: dict[str, Route]) -> dict[str, Any]:
    """The state machine's states by step; the fan-out's lies within its map."""
    assert routes["step-functions"].status == 0, routes["step-functions"].errors
    machine = json.loads(routes["step-functions"].output)
    found = dict(machine["States"])
    for state in machine["States"].values():
        inner = state.get("Iterator") or state.get("ItemProcessor") or {}
        found |= inner.get("States", {})
    return found


def test_argo_runs_every_step(argo: dict[str, Any]) -> None:
    assert set(STEPS) <= set(argo)


def test_argo_asks_for_a_gpu_where_a_network_is_trained(argo: dict[str, Any]) -> None:
    gpus = {step: argo[step]["container"]["resources"]["limits"]["nvidia.com/gpu"] for step in STEPS}
    assert {step for step, number in gpus.items() if number == "1"} == {"pretrain", "finetune"}
    assert argo["finetune"]["container"]["resources"]["requests"]["cpu"] == "3.0"
    assert argo["finetune"]["container"]["resources"]["requests"]["memory"] == "9000.0M"
    assert argo["build_boards"]["container"]["resources"]["requests"]["memory"] == "5000.0M"


def test_argo_tries_again_and_ends_what_hangs(argo: dict[str, Any]) -> None:
    assert {argo[step]["retryStrategy"]["limit"] for step in STEPS} == {2}
    assert {argo[step]["retryStrategy"]["backoff"]["duration"] for step in STEPS} == {"0m"}
    assert argo["finetune"]["activeDeadlineSeconds"] == 90 * 60
    assert argo["build_boards"]["activeDeadlineSeconds"] == 20 * 60


def test_argo_gives_each_container_its_variables(argo: dict[str, Any]) -> None:
    for step in STEPS:
        variables = {entry["name"]: entry["value"] for entry in argo[step]["container"]["env"]}
        assert FORWARDED.items() <= variables.items()
        assert variables["CHESS_GRPO_DEVICE"] == ("cuda" if step in ("pretrain", "finetune") else "cpu")
        assert not variables.keys() & set(CONFIDENTIAL)


def test_step_functions_run_every_step(states: dict[str, Any]) -> None:
    assert set(STEPS) <= set(states)


def test_step_functions_put_training_on_the_gpu_queue(states: dict[str, Any]) -> None:
    for step in STEPS:
        job = states[step]["Parameters"]
        wanted = {entry["Type"]: entry["Value"] for entry in job["ContainerOverrides"]["ResourceRequirements"]}
        trains = step in ("pretrain", "finetune")
        assert job["JobQueue"] == ("gpu" if trains else "cpu")
        assert wanted.get("GPU") == ("1" if trains else None)
    assert {entry["Type"]: entry["Value"] for entry in states["finetune"]["Parameters"]["ContainerOverrides"]["ResourceRequirements"]} == {
        "VCPU": "3",
        "MEMORY": "9000",
        "GPU": "1",
    }


def test_step_functions_register_each_image(states: dict[str, Any], routes: dict[str, Route]) -> None:
    client = boto3.client("batch")
    images = {
        step: client.describe_job_definitions(jobDefinitions=[states[step]["Parameters"]["JobDefinition"]])["jobDefinitions"][0][
            "containerProperties"
        ]["image"]
        for step in ("finetune", "build_boards")
    }
    assert images == {"finetune": "registry/gpu:1", "build_boards": "registry/cpu:1"}


def test_step_functions_try_again_and_end_what_hangs(states: dict[str, Any]) -> None:
    assert {states[step]["Parameters"]["RetryStrategy"]["Attempts"] for step in STEPS} == {3}, "the first try, and two more"
    assert states["finetune"]["Parameters"]["Timeout"]["AttemptDurationSeconds"] == 90 * 60
    assert states["build_boards"]["Parameters"]["Timeout"]["AttemptDurationSeconds"] == 20 * 60


def test_step_functions_give_each_container_its_variables(states: dict[str, Any]) -> None:
    for step in STEPS:
        variables = {entry["Name"]: entry.get("Value") for entry in states[step]["Parameters"]["ContainerOverrides"]["Environment"]}
        assert FORWARDED.items() <= variables.items()
        assert not variables.keys() & set(CONFIDENTIAL)


@pytest.mark.prove
def test_airflow_runs_every_step_with_its_resources_tries_and_variables(airflow: Route) -> None:
    [config] = [
        node.value for node in ast.parse(airflow.output).body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONFIG"
    ]
    operators = ast.literal_eval(config)["states"]
    assert set(operators) == set(STEPS)
    for step, operator in operators.items():
        arguments = operator["operator_args"]
        variables = {entry["name"]: entry["value"] for entry in arguments["env_vars"]}
        assert FORWARDED.items() <= variables.items()
        assert not variables.keys() & set(CONFIDENTIAL)
        assert arguments["retries"] == 2
        assert arguments["resources"]["limits"]["nvidia.com/gpu"] == ("1" if step in ("pretrain", "finetune") else "0")
    assert operators["finetune"]["operator_args"]["execution_timeout"] == {"seconds": 90 * 60}
    assert CANARY not in airflow.whole


@pytest.mark.prove
def test_kubernetes_is_asked_for_the_first_job_as_it_should_be(kubernetes: Route) -> None:
    assert kubernetes.status != 0, "the stand-in refuses every job"
    assert "this cluster runs nothing" in kubernetes.whole
    [job] = Cluster.jobs
    [container] = job["spec"]["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert FORWARDED.items() <= variables.items()
    assert not variables.keys() & set(CONFIDENTIAL)
    assert container["image"] == "registry/cpu:1"
    assert job["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 60 * 60, "the default of steps that neither train nor play"
    assert CANARY not in kubernetes.whole + json.dumps(job)


def test_no_route_shows_a_secret(routes: dict[str, Route]) -> None:
    for name, route in routes.items():
        assert CANARY not in route.whole, f"in what {name} printed"


def test_nothing_in_the_bucket_shows_a_secret(routes: dict[str, Route]) -> None:
    client = boto3.client("s3")
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket")["Contents"]]
    contents = {key: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}
    packages = 0
    for key, content in contents.items():
        assert CANARY.encode() not in _unpacked(content), key
        packages += b"class ChessGrpo(FlowSpec)" in _unpacked(content)
    assert packages, "no code package was looked into"


def _unpacked(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
