"""The command says whether tasks run on Batch; such tasks get a short list of this machine's variables, without a secret."""

import re
from pathlib import Path

import pytest

from grpo.settings.tree import TaskResources
from steps.batch.before_launch import prepare
from steps.batch.destination import DestinationError, forwarded, place_of, reachable, secret_names
from steps.run.commands import CommandError
from steps.run.machine import STORE, MachineError, store_place

SERVER = {"MLFLOW_TRACKING_URI": "https://mlflow.internal"}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("run --with=batch", "batch"),
        ("run --with retry --with batch:cpu=4,memory=100", "batch"),
        ("run --resume-from batch", ""),
        ("--quiet batch step finetune sha url", "batch"),
        ("--quiet step finetune --run-id 7", ""),
        ("resume --with kubernetes:image=x", "kubernetes"),
        ("--quiet kubernetes step finetune sha url", "kubernetes"),
        ("argo-workflows create --only-json", "kubernetes"),
    ],
)
def test_the_command_says_where_tasks_run(command: str, expected: str) -> None:
    assert place_of(command.split(), {}) == expected


def test_a_task_in_a_container_knows_its_place() -> None:
    assert place_of(["step", "finetune"], {"AWS_BATCH_JOB_ID": "1"}) == "batch"
    assert place_of(["step", "finetune"], {"METAFLOW_KUBERNETES_WORKLOAD": "1"}) == "kubernetes"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "it is not set"),
        ("sqlite:////home/me/mlflow.db", "is a file"),
        ("http://localhost:5000", "is a port"),
    ],
)
def test_a_tracking_store_that_no_other_machine_reaches_is_refused_before_the_run(address: str, why: str) -> None:
    with pytest.raises(DestinationError, match=f"MLFLOW_TRACKING_URI: .*{why}"):
        reachable({"MLFLOW_TRACKING_URI": address})


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_URI", "WANDB_BASE_URL"])
def test_a_password_in_an_address_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(DestinationError, match=f"{name} holds a name, password or query") as refusal:
        reachable({**SERVER, name: "https://me:hunter2@internal"})
    assert "hunter2" not in str(refusal.value)


def test_a_run_here_is_left_as_it_is(tmp_path: Path) -> None:
    here = {"METAFLOW_HOME": str(tmp_path)}
    assert list(prepare(["run"], here)) == []
    assert here.keys() == {"METAFLOW_HOME"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--config settings smoke run", "there is no such file; give `--config-value settings 'preset = \"smoke\"'`"),
        ("--config smoke run", "after the word `settings`"),
        ("run --config-value smoke", "must stand before `run`"),
        ("--config=settings smoke run", "there is no such file; give `--config-value settings 'preset = \"smoke\"'`"),
        ("--config=smoke run", "after the word `settings`"),
        ("resume --config-value=settings smoke", "must stand before `run`"),
    ],
)
def test_settings_that_are_typed_wrongly_are_refused_in_our_words(command: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=re.escape(words)):
        list(prepare(command.split(), {"METAFLOW_HOME": str(tmp_path)}))


def test_tasks_are_told_addresses_and_names_of_secrets_and_nothing_else_of_this_machine() -> None:
    told = {**SERVER, "CHESS_GRPO_STORE": "s3://bucket/chess-grpo", "CHESS_GRPO_SECRETS": "one, two", "WANDB_PROJECT": "chess"}
    hidden = dict.fromkeys(("CHESS_GRPO_HOME", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HOME"), "hunter2")
    facts = {"CHESS_GRPO_DEVICE": "cpu", "CHESS_GRPO_THREADS": "4", "_CHESS_GRPO_LAUNCHER": "batch"}
    assert forwarded(told | hidden, TaskResources(num_cpus=4), "batch") == told | facts
    assert secret_names(told) == ["one", "two"]


@pytest.mark.parametrize("bucket", ["Bad_Bucket", "ab", "a..b", "-ab", "ab-", "10.0.0.1", "a" * 64])
def test_a_name_that_no_bucket_can_have_is_refused_with_the_rule(bucket: str) -> None:
    with pytest.raises(MachineError, match=re.escape(f"CHESS_GRPO_STORE=s3://{bucket}/runs: ") + ".*3 to 63 lowercase letters"):
        store_place({STORE: f"s3://{bucket}/runs"})


@pytest.mark.parametrize(
    "address", ["s3://AKIAKEY:hunter2@bucket/runs", "s3://bucket/runs?key=hunter2", "s3://buck et/x", "gs://me:hunter2@bucket"]
)
def test_an_address_of_the_store_holds_no_secret_and_an_error_shows_none(address: str) -> None:
    """R10: the address stands in records, messages and logs."""
    with pytest.raises(MachineError, match=r"CHESS_GRPO_STORE=.*: .*give s3://BUCKET/PREFIX") as refusal:
        store_place({STORE: address})
    assert "hunter2" not in str(refusal.value)
    assert store_place({STORE: "s3://my.bucket-1/a/b"}) == "s3://my.bucket-1/a/b"
