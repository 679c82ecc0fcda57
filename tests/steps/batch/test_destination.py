"""Where tasks run is read from the command, and what they are told of this machine is a short list without a secret."""

from collections.abc import Callable

import pytest

from grpo.settings.tree import Settings, TaskResources, read_settings
from steps.batch.destination import DestinationError, destination, forwarded, prepare, secret_names
from steps.runtime.machine import Machine, MachineError

SERVER = {"MLFLOW_TRACKING_URI": "https://mlflow.internal"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("run", None),
        ("run --max-workers 3", None),
        ("run --with retry", None),
        ("run --with batch", "batch"),
        ("run --with=batch", "batch"),
        ("run --with retry --with batch:cpu=4,memory=100", "batch"),
        ("--with kubernetes run", "kubernetes"),
        ("resume --with batch", "batch"),
        ("argo-workflows create", "argo-workflows"),
        ("--datastore s3 step-functions create --only-json", "step-functions"),
        ("airflow create x.py", "airflow"),
        ("run --resume-from batch", None),
        ("--quiet batch step finetune sha url", "batch"),
        ("kubernetes step finetune sha url", "kubernetes"),
        ("--quiet step finetune --run-id 7", None),
    ],
)
def test_the_command_says_where_tasks_run(command: str, expected: str | None) -> None:
    assert destination(command.split(), {}) == expected


@pytest.mark.parametrize("variable", ["AWS_BATCH_JOB_ID", "METAFLOW_KUBERNETES_WORKLOAD"])
def test_a_task_in_a_container_knows_it_whatever_its_command_says(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("step finetune", "--with batch step finetune"):
        assert destination(command.split(), {variable: "1"}) == "container"
    monkeypatch.setenv(variable, "1")
    assert Machine.here().is_container


def test_a_run_here_is_left_as_it_is() -> None:
    environment: dict[str, str] = {}
    assert prepare(["run"], environment) == []
    assert environment == {}


def test_a_run_elsewhere_keeps_its_data_in_s3_unless_it_is_told_otherwise() -> None:
    environment = dict(SERVER)
    prepare(["run", "--with", "batch"], environment)
    assert environment["METAFLOW_DEFAULT_DATASTORE"] == "s3"
    environment = {**SERVER, "METAFLOW_DEFAULT_DATASTORE": "azure", "CHESS_GRPO_SHARED": "s3://bucket/outputs"}
    prepare(["run", "--with", "batch"], environment)
    assert environment["METAFLOW_DEFAULT_DATASTORE"] == "azure"


@pytest.mark.parametrize("address", [None, "", "sqlite:////home/me/mlflow.db", "mlruns", "./mlruns"])
def test_a_run_elsewhere_is_refused_before_any_work_when_its_tasks_could_not_reach_the_tracking_store(address: str | None) -> None:
    environment = {} if address is None else {"MLFLOW_TRACKING_URI": address}
    for command in ("run --with batch", "resume --with kubernetes", "argo-workflows create"):
        with pytest.raises(DestinationError, match=r"MLFLOW_TRACKING_URI: .*docs/aws.md"):
            prepare(command.split(), environment)
    prepare(["--with", "batch", "show"], environment)  # Starts no task.


@pytest.mark.parametrize("address", ["https://me:secret@mlflow.internal", "https://me@mlflow.internal"])
def test_an_address_that_holds_who_one_is_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(DestinationError, match="CHESS_GRPO_SECRETS") as refusal:
        prepare(["run", "--with", "batch"], {"MLFLOW_TRACKING_URI": address})
    assert "secret@" not in str(refusal.value)
    with pytest.raises(DestinationError, match=r"WANDB_BASE_URL holds a name or password.*WANDB_API_KEY"):
        prepare(["run", "--with", "batch"], {**SERVER, "WANDB_BASE_URL": address})


@pytest.mark.parametrize("address", ["http://localhost:5000", "http://127.0.0.1:5000/", "http://[::1]:5000"])
def test_a_tunnels_port_is_the_launchers_and_tasks_are_given_the_address_behind_it(address: str) -> None:
    environment = {"MLFLOW_TRACKING_URI": address}
    with pytest.raises(
        DestinationError, match=r"CHESS_GRPO_TRACKING_INTERNAL_URI: it is not set and MLFLOW_TRACKING_URI, http.* is a port of"
    ):
        prepare(["run", "--with", "batch"], environment)
    environment["CHESS_GRPO_TRACKING_INTERNAL_URI"] = "http://mlflow.internal:5000"
    assert prepare(["run", "--with", "batch"], environment) == []
    assert forwarded(environment, TaskResources())["MLFLOW_TRACKING_URI"] == "http://mlflow.internal:5000"
    environment["CHESS_GRPO_TRACKING_INTERNAL_URI"] = "http://me:hunter2@mlflow.internal:5000"
    with pytest.raises(DestinationError, match="CHESS_GRPO_TRACKING_INTERNAL_URI holds a name or password") as refusal:
        prepare(["run", "--with", "batch"], environment)
    assert "hunter2" not in str(refusal.value)
    environment["CHESS_GRPO_TRACKING_INTERNAL_URI"] = "sqlite:////home/me/mlflow.db"
    with pytest.raises(DestinationError, match=r"CHESS_GRPO_TRACKING_INTERNAL_URI: sqlite:.* is a file of this machine"):
        prepare(["run", "--with", "batch"], environment)


@pytest.mark.parametrize("place", ["gs://bucket/outputs", "az://me:hunter2@container/outputs"])
def test_a_shared_store_that_is_not_s3_is_refused_here_and_where_tasks_are_sent_from(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_SHARED", place)
    calls: list[Callable[[], object]] = [Machine.here, lambda: prepare(["run", "--with", "batch"], {**SERVER, "CHESS_GRPO_SHARED": place})]
    for call in calls:
        with pytest.raises(MachineError, match=r"CHESS_GRPO_SHARED=\w+://.*: give s3://BUCKET/PREFIX or a folder") as refusal:
            call()
        assert "hunter2" not in str(refusal.value)
    monkeypatch.setenv("CHESS_GRPO_SHARED", "s3://bucket/outputs")
    assert Machine.here().shared == "s3://bucket/outputs"


@pytest.mark.parametrize("store", ["gs", "azure"])
def test_a_datastore_that_cannot_hold_what_tasks_share_is_refused_unless_another_place_can(store: str) -> None:
    environment = {**SERVER, "METAFLOW_DEFAULT_DATASTORE": store}
    with pytest.raises(DestinationError, match=f"METAFLOW_DEFAULT_DATASTORE={store}: .* set METAFLOW_DEFAULT_DATASTORE=s3"):
        prepare(["run", "--with", "kubernetes"], environment)
    assert prepare(["run", "--with", "kubernetes"], {**environment, "CHESS_GRPO_SHARED": "s3://bucket/outputs"}) == []


def test_secrets_that_stay_here_are_told_of_unless_they_are_given_by_name() -> None:
    environment = {**SERVER, "MLFLOW_TRACKING_PASSWORD": "hunter2"}
    [note] = prepare(["run", "--with", "batch"], environment)
    assert "MLFLOW_TRACKING_PASSWORD" in note
    assert "hunter2" not in note
    assert prepare(["run", "--with", "batch"], {**environment, "CHESS_GRPO_SECRETS": "chess/tracking"}) == []


def test_tasks_are_told_addresses_and_names_of_secrets_and_nothing_else_of_this_machine() -> None:
    environment = {
        **SERVER,
        "CHESS_GRPO_SHARED": "s3://bucket/chess-grpo",
        "CHESS_GRPO_SECRETS": "one, two",
        "CHESS_GRPO_HOME": "/home/me/runs",
        "CHESS_GRPO_STOCKFISH": "/home/me/stockfish",
        "MLFLOW_TRACKING_PASSWORD": "hunter2",
        "CHESS_GRPO_WANDB": "online",
        "WANDB_PROJECT": "chess",
        "WANDB_API_KEY": "hunter3",
        "AWS_SECRET_ACCESS_KEY": "hunter4",
        "HOME": "/home/me",
    }
    assert forwarded(environment, TaskResources(num_cpus=4)) == {
        **SERVER,
        "CHESS_GRPO_SHARED": "s3://bucket/chess-grpo",
        "CHESS_GRPO_SECRETS": "one, two",
        "CHESS_GRPO_WANDB": "online",
        "WANDB_PROJECT": "chess",
        "CHESS_GRPO_DEVICE": "cpu",
        "CHESS_GRPO_THREADS": "4",
    }
    assert secret_names(environment) == ["one", "two"]
    assert secret_names({}) == []


def test_a_task_that_asks_for_a_gpu_fails_without_one_and_every_other_uses_none() -> None:
    assert forwarded({}, TaskResources(num_gpus=1))["CHESS_GRPO_DEVICE"] == "cuda"
    assert forwarded({}, TaskResources())["CHESS_GRPO_DEVICE"] == "cpu"


def test_what_a_kind_of_task_does_not_say_is_that_kinds_default() -> None:
    resources = read_settings("resources.training.num_cpus = 8\nresources.boards.max_minutes = 5").resources
    assert (resources.training.num_cpus, resources.training.num_gpus, resources.training.max_minutes) == (8, 1, 2_880)
    assert (resources.boards.memory_mib, resources.boards.max_minutes) == (4_096, 5)
    assert Settings().resources.training.num_gpus == 1
