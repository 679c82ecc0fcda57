"""Whether tasks run on Batch is read from the command, and what they are told of this machine is a short list without a secret."""

import pytest

from grpo.settings.tree import TaskResources
from steps.batch.destination import DestinationError, batch_place, forwarded, prepare, secret_names, sends_to_batch

SERVER = {"MLFLOW_TRACKING_URI": "https://mlflow.internal"}
RUN = ["run", "--with", "batch"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("run --with retry", False),
        ("run --with=batch", True),
        ("run --with retry --with batch:cpu=4,memory=100", True),
        ("resume --with batch", True),
        ("run --resume-from batch", False),
        ("--quiet batch step finetune sha url", True),
        ("--quiet step finetune --run-id 7", False),
    ],
)
def test_the_command_says_where_tasks_run(command: str, expected: bool) -> None:
    assert sends_to_batch(command.split()) == expected


def test_a_run_here_is_left_as_it_is_and_one_on_batch_keeps_its_data_in_s3_unless_told_otherwise() -> None:
    here: dict[str, str] = {}
    assert prepare(["run"], here) == []
    assert here == {}
    for given, datastore in ((SERVER, "s3"), ({**SERVER, "METAFLOW_DEFAULT_DATASTORE": "azure"}, "azure")):
        environment = dict(given)
        assert prepare(RUN, environment) == []
        assert environment["METAFLOW_DEFAULT_DATASTORE"] == datastore


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "it is not set"),
        ("sqlite:////home/me/mlflow.db", "is a file"),
        ("mlruns", "is a file"),
        ("http://localhost:5000", "is a port"),
    ],
)
def test_a_tracking_store_that_no_other_machine_reaches_is_refused_before_the_run(address: str, why: str) -> None:
    with pytest.raises(DestinationError, match=f"MLFLOW_TRACKING_URI: .*{why}"):
        prepare(RUN, {"MLFLOW_TRACKING_URI": address})


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_URI", "WANDB_BASE_URL"])
def test_a_password_in_an_address_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(DestinationError, match=f"{name} holds a name or password") as refusal:
        prepare(RUN, {**SERVER, name: "https://me:hunter2@internal"})
    assert "hunter2" not in str(refusal.value)


def test_a_password_of_this_machine_is_not_sent_and_the_user_is_told() -> None:
    environment = {**SERVER, "MLFLOW_TRACKING_PASSWORD": "hunter2"}
    [note] = prepare(RUN, environment)
    assert "MLFLOW_TRACKING_PASSWORD" in note
    assert "hunter2" not in note
    assert prepare(RUN, {**environment, "CHESS_GRPO_SECRETS": "chess/tracking"}) == []


def test_tasks_are_told_addresses_and_names_of_secrets_and_nothing_else_of_this_machine() -> None:
    told = {**SERVER, "CHESS_GRPO_STORE": "s3://bucket/chess-grpo", "CHESS_GRPO_SECRETS": "one, two", "WANDB_PROJECT": "chess"}
    hidden = dict.fromkeys(("CHESS_GRPO_HOME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HOME"), "hunter2")
    facts = {"CHESS_GRPO_DEVICE": "cpu", "CHESS_GRPO_THREADS": "4"}
    assert forwarded(told | hidden, TaskResources(num_cpus=4)) == told | facts
    assert secret_names(told) == ["one", "two"]


def test_a_task_that_asks_for_a_gpu_goes_to_its_queue_with_its_image_and_fails_without_one() -> None:
    environment = {"CHESS_GRPO_BATCH_GPU_QUEUE": "gpus", "CHESS_GRPO_BATCH_GPU_IMAGE": "image:cuda"}
    assert batch_place(TaskResources(num_gpus=1), environment) == {"queue": "gpus", "image": "image:cuda"}
    assert batch_place(TaskResources(num_gpus=1), {}) == batch_place(TaskResources(), environment) == {}
    assert forwarded({}, TaskResources(num_gpus=1))["CHESS_GRPO_DEVICE"] == "cuda"
