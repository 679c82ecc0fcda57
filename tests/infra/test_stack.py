"""The stack as code: clean for cfn-lint, held to rules that are shown able to fail, and created against moto."""

import ast
import copy
import importlib.util
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import cfnlint
import pytest
from created_stack import GIVEN, NOT_IN_MOTO, Created
from stack_rules import CONDITIONS, RULES, STACK, Template, read_stack, statements, violations

from infra import stack_variables

ROOT = STACK.parents[1]


@pytest.fixture(scope="module")
def template() -> Template:
    return read_stack()


def test_cfn_lint_finds_nothing() -> None:
    matches = cfnlint.lint(STACK.read_text(), regions=["us-east-1"])
    assert [str(match) for match in matches] == []


def test_the_template_is_small_enough_to_be_sent_as_it_is() -> None:
    assert STACK.stat().st_size <= 51_200, "larger ones need a bucket of their own to be deployed from"


def test_nothing_is_against_the_rules(template: Template) -> None:
    assert violations(template) == []


def _resource(name: str, *path: str | int) -> Callable[[Template], Any]:
    """Return a way to what lies in a resource's properties."""

    def find(template: Template) -> Any:
        found = template["Resources"][name]["Properties"]
        for key in path:
            found = found[key]
        return found

    return find


def _set(find: Callable[[Template], Any], key: Any, value: Any) -> Callable[[Template], None]:
    return lambda template: find(template).__setitem__(key, value)


def _drop(find: Callable[[Template], Any], key: Any) -> Callable[[Template], None]:
    return lambda template: find(template).__delitem__(key)


def _replace(find: Callable[[Template], Any], key: Any, old: str, new: str) -> Callable[[Template], None]:
    def mutate(template: Template) -> None:
        assert old in find(template)[key]
        find(template)[key] = find(template)[key].replace(old, new)

    return mutate


def _add(find: Callable[[Template], Any], value: Any) -> Callable[[Template], None]:
    return lambda template: find(template).append(value)


def _delete(name: str) -> Callable[[Template], None]:
    return lambda template: template["Resources"].__delitem__(name)


_POLICY = ("Policies", 0, "PolicyDocument", "Statement")
_RUNS = _resource("JobRole", *_POLICY, 0)
_TRUST = _resource("JobRole", "AssumeRolePolicyDocument", "Statement", 0)
_MACHINES = _resource("MachineTemplate", "LaunchTemplateData")
_SERVER = _resource("MlflowTask", "ContainerDefinitions", 0)
_ANYBODY = {"IpProtocol": "tcp", "FromPort": 5000, "ToPort": 5000, "CidrIp": "0.0.0.0/0"}


def _parameters(template: Template) -> Any:
    return template["Parameters"]


def _right(action: str, **changes: Any) -> Callable[[Template], None]:
    """Return what changes all statements that allow an action; a value of None takes a key away."""

    def mutate(template: Template) -> None:
        for _, statement in statements(template):
            if action in statement.get("Action", ()):
                statement.update(changes)
                for key in [key for key, value in changes.items() if value is None]:
                    del statement[key]

    return mutate


def _new_right(name: str, action: str, resource: Any, **more: Any) -> Callable[[Template], None]:
    """Return what gives a role, or the launchers, one right more."""
    path = ("PolicyDocument", "Statement") if name == "LauncherPolicy" else _POLICY
    return _add(_resource(name, *path), {"Effect": "Allow", "Action": action, "Resource": resource, **more})


def _planted(kind: str, **properties: Any) -> Callable[[Template], None]:
    """Return what adds a resource."""
    return lambda template: template["Resources"].__setitem__("Planted", {"Type": kind, "Properties": properties})


def _here(service: str, what: str) -> dict[str, str]:
    return {"Fn::Sub": f"arn:${{AWS::Partition}}:{service}:${{AWS::Region}}:${{AWS::AccountId}}:{what}"}


def _passed(service: Any, how: str = "StringEquals") -> dict[str, Any]:
    return {how: {"iam:PassedToService": service}}


OVER_PERMISSIONS: list[tuple[str, Callable[[Template], None]]] = [
    # With the wrong condition, or none.
    *(("wide_rights_have_their_conditions", _right(action, Condition=None)) for action in CONDITIONS),
    ("wide_rights_have_their_conditions", _right("iam:PassRole", Condition=None)),
    ("wide_rights_have_their_conditions", _right("iam:PassRole", Condition=_passed("*", "StringLike"))),
    ("wide_rights_have_their_conditions", _right("iam:PassRole", Condition=_passed("lambda.amazonaws.com"))),
    (
        "wide_rights_have_their_conditions",
        _right("ssm:StartSession", Condition={"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "false"}}),
    ),
    ("wide_rights_have_their_conditions", _right("batch:RegisterJobDefinition", Condition={"Bool": {"batch:Privileged": "true"}})),
    (
        "wide_rights_have_their_conditions",
        _right("batch:TerminateJob", Condition={"StringLike": {"aws:ResourceTag/metaflow.flow_name": "*"}}),
    ),
    ("wide_rights_have_their_conditions", _new_right("JobRole", "ssm:StartSession", _here("ec2", "instance/${DoorMachine}"))),
    # For more than the stack's own.
    ("rights_end_at_the_stack", _right("ssm:TerminateSession", Resource=_here("ssm", "session/*"))),
    ("rights_end_at_the_stack", _right("ssm:StartSession", Resource=_here("ec2", "instance/*"))),
    ("rights_end_at_the_stack", _right("batch:SubmitJob", Resource=_here("batch", "job-queue/*"))),
    ("rights_end_at_the_stack", _right("states:StartExecution", Resource=_here("states", "stateMachine:*"))),
    ("rights_end_at_the_stack", _right("events:PutRule", Resource=_here("events", "rule/*"))),
    ("rights_end_at_the_stack", _right("dynamodb:GetItem", Resource=_here("dynamodb", "table/*"))),
    (
        "rights_end_at_the_stack",
        _new_right("LauncherPolicy", "iam:PassRole", {"Fn::GetAtt": ["MachineRole", "Arn"]}, Condition=_passed("ec2")),
    ),
    # Of another kind.
    ("each_may_do_this_at_most", _new_right("JobRole", "iam:PutRolePolicy", {"Fn::GetAtt": ["JobRole", "Arn"]})),
    # More than is needed, of the stack's own things.
    ("each_may_do_this_at_most", _new_right("JobRole", "secretsmanager:PutSecretValue", {"Ref": "TrackingSecret"})),
    ("each_may_do_this_at_most", _new_right("MachinesRole", "dynamodb:DeleteTable", {"Fn::GetAtt": ["FanOuts", "Arn"]})),
    ("each_may_do_this_at_most", _new_right("LauncherPolicy", "cloudformation:UpdateStack", {"Ref": "AWS::StackId"})),
    ("each_may_do_this_at_most", _new_right("LauncherPolicy", "ssm:SendCommand", _here("ec2", "instance/${DoorMachine}"))),
    ("each_may_do_this_at_most", _new_right("MlflowStartRole", "ecr:PutImage", _here("ecr", "repository/*"))),
    # In a place where no rule looked.
    ("each_may_do_this_at_most", _planted("AWS::IAM::RolePolicy", RoleName={"Ref": "JobRole"}, PolicyDocument={"Statement": []})),
    ("each_may_do_this_at_most", _planted("AWS::IAM::User", ManagedPolicyArns=["arn:aws:iam::aws:policy/AdministratorAccess"])),
    ("each_may_do_this_at_most", _planted("AWS::SecretsManager::ResourcePolicy", SecretId={"Ref": "AdminSecret"}, ResourcePolicy={})),
    ("each_may_do_this_at_most", _planted("AWS::ECR::Repository", RepositoryPolicyText={"Statement": []})),
    (
        "each_may_do_this_at_most",
        _add(
            _resource("LauncherPolicy", "PolicyDocument", "Statement"),
            {"Fn::If": ["HasDoor", {"Ref": "AWS::NoValue"}, {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*"}]},
        ),
    ),
    ("rights_end_at_the_stack", _new_right("MachinesRole", "sts:AssumeRole", {"Fn::GetAtt": ["JobRole", "Arn"]})),
    ("rights_end_at_the_stack", _new_right("LauncherPolicy", "kms:Decrypt", "*")),
    ("rights_end_at_the_stack", _right("s3:ListBucket", Resource=None, NotResource="x")),
    ("actions_are_named", _right("batch:SubmitJob", Action=None, NotAction="iam:*")),
]
"""What somebody could do who is not meant to, each with the rule that sees it."""


BREAKS: list[tuple[str, Callable[[Template], None]]] = [
    ("actions_are_named", _set(_RUNS, "Action", "s3:*")),
    ("actions_are_named", _set(_RUNS, "Action", ["s3:GetObject", "*"])),
    (
        "actions_are_named",
        _add(_resource("LauncherPolicy", "PolicyDocument", "Statement"), {"Effect": "Allow", "Action": "batch:*", "Resource": "x"}),
    ),
    ("rights_end_at_the_stack", _set(_RUNS, "Resource", "*")),
    ("data_and_secrets_are_for_those_who_need_them", _set(_RUNS, "Resource", {"Fn::Sub": "${Bucket.Arn}/*"})),
    (
        "data_and_secrets_are_for_those_who_need_them",
        _set(_RUNS, "Action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:PutObjectAcl"]),
    ),
    ("data_and_secrets_are_for_those_who_need_them", _set(_resource("JobRole", *_POLICY, 3), "Resource", {"Ref": "AdminSecret"})),
    (
        "data_and_secrets_are_for_those_who_need_them",
        lambda template: template["Resources"].__setitem__("Another", copy.deepcopy(template["Resources"]["JobRole"])),
    ),
    ("roles_are_taken_by_these", _set(_TRUST, "Principal", {"AWS": "*"})),
    ("roles_are_taken_by_these", _drop(_TRUST, "Condition")),
    ("roles_are_taken_by_these", _set(_resource("JobRole"), "ManagedPolicyArns", ["arn:aws:iam::aws:policy/AdministratorAccess"])),
    ("roles_are_taken_by_these", _add(_resource("MachineRole", "ManagedPolicyArns"), "arn:aws:iam::aws:policy/AmazonS3FullAccess")),
    *OVER_PERMISSIONS,
    ("nothing_is_open", _add(_resource("MlflowGroup", "SecurityGroupIngress"), _ANYBODY)),
    ("nothing_is_open", _set(_resource("DoorGroup"), "SecurityGroupIngress", [{**_ANYBODY, "FromPort": 22, "ToPort": 22}])),
    ("nothing_is_open", _set(_resource("JobsGroupItself"), "CidrIpv6", "::/0")),
    ("nothing_is_open", _drop(_resource("DatabaseGroup"), "SecurityGroupEgress")),
    (
        "nothing_has_a_public_address",
        _set(_resource("MlflowService", "NetworkConfiguration", "AwsvpcConfiguration"), "AssignPublicIp", "ENABLED"),
    ),
    ("nothing_has_a_public_address", _set(_resource("CpuSpot", "ComputeResources"), "Subnets", [{"Ref": "PublicSubnet"}])),
    ("nothing_has_a_public_address", _set(_resource("DoorMachine"), "SubnetId", {"Ref": "PublicSubnet"})),
    ("nothing_has_a_public_address", _set(_resource("PublicSubnet"), "MapPublicIpOnLaunch", True)),
    ("nothing_has_a_public_address", _set(_resource("PrivateSubnetBRoutes"), "RouteTableId", {"Ref": "PublicRoutes"})),
    ("metadata_needs_a_token", _set(lambda template: _MACHINES(template)["MetadataOptions"], "HttpTokens", "optional")),
    ("metadata_needs_a_token", _set(lambda template: _MACHINES(template)["MetadataOptions"], "HttpPutResponseHopLimit", 1)),
    ("metadata_needs_a_token", _drop(_resource("DoorTemplate", "LaunchTemplateData"), "MetadataOptions")),
    ("metadata_needs_a_token", _drop(_resource("GpuSpot", "ComputeResources"), "LaunchTemplate")),
    ("disks_are_encrypted", _set(lambda template: _MACHINES(template)["BlockDeviceMappings"][0]["Ebs"], "Encrypted", False)),
    ("disks_are_encrypted", _drop(_MACHINES, "BlockDeviceMappings")),
    ("disks_are_encrypted", _set(_resource("Database"), "StorageEncrypted", False)),
    ("the_bucket_is_private", _set(_resource("Bucket", "PublicAccessBlockConfiguration"), "BlockPublicPolicy", False)),
    ("the_bucket_is_private", _drop(_resource("Bucket"), "PublicAccessBlockConfiguration")),
    ("the_bucket_is_private", _drop(_resource("Bucket"), "BucketEncryption")),
    ("the_bucket_is_private", _delete("BucketPolicy")),
    ("the_bucket_is_private", _set(_resource("BucketPolicy", "PolicyDocument", "Statement", 0), "Condition", {})),
    (
        "the_bucket_is_private",
        _add(
            _resource("BucketPolicy", "PolicyDocument", "Statement"),
            {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "x"},
        ),
    ),
    ("the_bucket_is_private", lambda template: template["Resources"]["Bucket"].__delitem__("DeletionPolicy")),
    ("progress_expires", _set(_resource("Bucket", "LifecycleConfiguration", "Rules", 0), "Prefix", "chess-grpo/progress/")),
    ("progress_expires", _set(_resource("Bucket", "LifecycleConfiguration", "Rules", 0), "Status", "Disabled")),
    (
        "progress_expires",
        _add(_resource("Bucket", "LifecycleConfiguration", "Rules"), {"Id": "all", "Status": "Enabled", "ExpirationInDays": 9}),
    ),
    ("progress_expires", _drop(_resource("Bucket", "LifecycleConfiguration", "Rules"), 1)),
    ("the_database_is_kept_and_private", _set(_resource("Database"), "PubliclyAccessible", True)),
    ("the_database_is_kept_and_private", _set(_resource("Database"), "DeletionProtection", False)),
    ("the_database_is_kept_and_private", _set(lambda template: _parameters(template)["ProtectDatabase"], "Default", "false")),
    ("the_database_is_kept_and_private", lambda template: template["Resources"]["Database"].__setitem__("DeletionPolicy", "Delete")),
    ("the_database_is_kept_and_private", _set(_resource("Database"), "BackupRetentionPeriod", 0)),
    ("the_database_is_kept_and_private", _set(_resource("Database"), "MasterUserPassword", {"Ref": "AlarmEmail"})),
    ("no_secret_is_plain", _set(_parameters, "DatabasePassword", {"Type": "String"})),
    ("no_secret_is_plain", _set(_parameters, "Word", {"Type": "String", "NoEcho": True})),
    ("no_secret_is_plain", _add(lambda template: _SERVER(template)["Environment"], {"Name": "PGPASSWORD", "Value": "x"})),
    (
        "no_secret_is_plain",
        _add(
            lambda template: _SERVER(template)["Environment"],
            {"Name": "URI", "Value": "{{resolve:secretsmanager:x:SecretString:password}}"},
        ),
    ),
    ("no_secret_is_plain", _set(lambda template: _SERVER(template)["Secrets"][0], "ValueFrom", "arn:aws:secretsmanager:elsewhere")),
    ("no_secret_is_plain", _set(_resource("AdminSecret"), "SecretString", "password1234")),
    ("no_secret_is_plain", _set(_resource("AdminSecret", "GenerateSecretString"), "PasswordLength", 8)),
    (
        "no_secret_is_plain",
        lambda template: template["Outputs"].__setitem__("Admin", {"Value": {"Fn::Sub": "{{resolve:secretsmanager:${AdminSecret}}}"}}),
    ),
    ("queues_end_what_cannot_start", _drop(_resource("GpuQueue"), "JobStateTimeLimitActions")),
    ("queues_end_what_cannot_start", _drop(_resource("NodesQueue", "JobStateTimeLimitActions"), 1)),
    ("services_can_be_stopped", _set(_resource("MlflowService"), "DesiredCount", 1)),
    ("logs_end", _drop(_resource("ServiceLogs"), "RetentionInDays")),
    ("logs_end", _delete("BatchLogs")),
    ("logs_end", _drop(_SERVER, "LogConfiguration")),
    ("spot_comes_first_and_on_demand_behind", _set(_resource("GpuQueue", "ComputeEnvironmentOrder", 0), "Order", 3)),
    ("spot_comes_first_and_on_demand_behind", _drop(_resource("CpuQueue", "ComputeEnvironmentOrder"), 1)),
    (
        "spot_comes_first_and_on_demand_behind",
        _set(_resource("NodesQueue", "ComputeEnvironmentOrder", 0), "ComputeEnvironment", {"Ref": "GpuSpot"}),
    ),
    ("spot_comes_first_and_on_demand_behind", _set(_resource("CpuOnDemand", "ComputeResources"), "InstanceTypes", [{"Ref": "GpuFamily"}])),
    ("spot_comes_first_and_on_demand_behind", _set(_resource("GpuOnDemand", "ComputeResources"), "AllocationStrategy", "BEST_FIT")),
    ("machines_are_of_one_family", _set(_resource("CpuSpot", "ComputeResources"), "InstanceTypes", ["optimal"])),
    ("machines_are_of_one_family", _add(_resource("CpuSpot", "ComputeResources", "InstanceTypes"), "c6a")),
    ("machines_are_of_one_family", _set(lambda template: _parameters(template)["CpuFamily"], "AllowedPattern", ".*")),
    ("machines_are_bounded", _set(_resource("GpuOnDemand", "ComputeResources"), "MinvCpus", 4)),
    ("machines_are_bounded", _set(_resource("GpuOnDemand", "ComputeResources"), "MaxvCpus", 4096)),
    ("machines_are_bounded", _drop(_resource("CpuSpot", "ComputeResources"), "Tags")),
    ("spot_machines_drain", _replace(lambda template: _MACHINES(template)["UserData"], "Fn::Base64", "DRAINING=true", "DRAINING=false")),
    ("spot_machines_drain", _replace(lambda template: _MACHINES(template)["UserData"], "Fn::Base64", "MIME-Version: 1.0\n", "")),
    ("spot_machines_drain", _drop(_MACHINES, "UserData")),
    ("images_are_pinned", _set(lambda template: _parameters(template)["MlflowImage"], "Default", "ghcr.io/mlflow/mlflow:latest")),
    ("images_are_pinned", _drop(lambda template: _parameters(template)["GpuImage"], "AllowedPattern")),
    ("images_are_pinned", _set(_SERVER, "Image", "ghcr.io/mlflow/mlflow")),
    ("the_tracking_server_asks_who", _replace(lambda template: _SERVER(template)["Command"], 0, "--app-name basic-auth", "")),
    ("the_tracking_server_asks_who", _replace(lambda template: _SERVER(template)["Command"], 0, "= READ", "= MANAGE")),
    ("the_budget_tells", _delete("Budget")),
    ("the_budget_tells", _drop(_resource("Budget", "NotificationsWithSubscribers"), 1)),
]


@pytest.mark.parametrize(("rule", "mutate"), BREAKS, ids=[f"{rule}-{number}" for number, (rule, _) in enumerate(BREAKS)])
def test_a_template_with_this_change_is_against_its_rule(template: Template, rule: str, mutate: Callable[[Template], None]) -> None:
    broken = copy.deepcopy(template)
    mutate(broken)
    assert broken != template
    assert list(RULES[rule](broken)), "the change went unseen"


def test_every_rule_is_shown_able_to_fail() -> None:
    assert {rule for rule, _ in BREAKS} == set(RULES)


@pytest.fixture(scope="module")
def created(template: Template) -> Iterator[Created]:
    from moto import mock_aws

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        with mock_aws():
            yield Created(template)


def test_moto_makes_all_but_these(created: Created) -> None:
    assert created.not_made == NOT_IN_MOTO


def test_the_stack_is_created(created: Created, template: Template) -> None:
    assert created.stack["StackStatus"] == "CREATE_COMPLETE"
    conditional = {"OtherSecretsPolicy"}
    wanted = {name for name, resource in template["Resources"].items() if resource["Type"] not in NOT_IN_MOTO} - conditional
    assert wanted == set(created.resources)


def test_what_goes_into_jobs_and_services_exists(created: Created) -> None:
    outputs = created.outputs
    queues = {queue["jobQueueName"] for queue in boto3.client("batch").describe_job_queues()["jobQueues"]}
    assert {
        outputs["METAFLOW_BATCH_JOB_QUEUE"],
        outputs["CHESS_GRPO_BATCH_GPU_QUEUE"],
        outputs["CHESS_GRPO_BATCH_NODES_QUEUE"],
    } == queues
    role = boto3.client("iam").get_role(RoleName=created.resources["JobRole"])["Role"]["Arn"]
    assert outputs["METAFLOW_ECS_S3_ACCESS_IAM_ROLE"] == role
    secret = json.loads(boto3.client("secretsmanager").get_secret_value(SecretId=outputs["CHESS_GRPO_SECRETS"])["SecretString"])
    assert set(secret) == {"MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"}
    bucket = created.resources["Bucket"]
    assert outputs["METAFLOW_DATASTORE_SYSROOT_S3"] == f"s3://{bucket}/metaflow"
    assert outputs["METAFLOW_DATATOOLS_S3ROOT"] == f"s3://{bucket}/metaflow/data"
    assert outputs["CHESS_GRPO_SHARED"] == f"s3://{bucket}/metaflow/chess-grpo"
    assert outputs["METAFLOW_SFN_DYNAMO_DB_TABLE"] in boto3.client("dynamodb").list_tables()["TableNames"]
    # A laptop reaches both services by forwarded ports, jobs by their private names.
    assert (outputs["MLFLOW_TRACKING_URI"], outputs["METAFLOW_SERVICE_URL"]) == ("http://localhost:5000", "http://localhost:8080/")
    assert outputs["CHESS_GRPO_TRACKING_INTERNAL_URI"] == "http://mlflow.chess-grpo.internal:5000"
    assert outputs["METAFLOW_SERVICE_INTERNAL_URL"] == "http://metadata.chess-grpo.internal:8080/"
    assert (outputs["METAFLOW_BATCH_CONTAINER_IMAGE"], outputs["CHESS_GRPO_BATCH_GPU_IMAGE"]) == (GIVEN["CpuImage"], GIVEN["GpuImage"])
    assert outputs["AWS_DEFAULT_REGION"] == "us-east-1"


def test_the_outputs_are_the_variables_that_are_read(created: Created) -> None:
    variables = {name for name in created.outputs if re.fullmatch(r"[A-Z0-9_]+", name)}
    assert variables == {
        "AWS_DEFAULT_REGION",
        "METAFLOW_DEFAULT_DATASTORE",
        "METAFLOW_DEFAULT_METADATA",
        "METAFLOW_DATASTORE_SYSROOT_S3",
        "METAFLOW_DATATOOLS_S3ROOT",
        "METAFLOW_SERVICE_URL",
        "METAFLOW_SERVICE_INTERNAL_URL",
        "METAFLOW_BATCH_EMIT_TAGS",
        "METAFLOW_BATCH_JOB_QUEUE",
        "METAFLOW_ECS_S3_ACCESS_IAM_ROLE",
        "METAFLOW_BATCH_CONTAINER_IMAGE",
        "CHESS_GRPO_BATCH_GPU_QUEUE",
        "CHESS_GRPO_BATCH_GPU_IMAGE",
        "CHESS_GRPO_BATCH_NODES_QUEUE",
        "METAFLOW_SFN_IAM_ROLE",
        "METAFLOW_SFN_DYNAMO_DB_TABLE",
        "METAFLOW_SFN_STATE_MACHINE_PREFIX",
        "METAFLOW_EVENTS_SFN_ACCESS_IAM_ROLE",
        "CHESS_GRPO_SECRETS",
        "CHESS_GRPO_SHARED",
        "CHESS_GRPO_TRACKING_INTERNAL_URI",
        "MLFLOW_TRACKING_URI",
    }
    ours = {name for path in (ROOT / "steps").rglob("*.py") for name in _strings(path)}
    metaflows = _strings(_package("metaflow") / "metaflow_config.py")
    for name in variables - {"AWS_DEFAULT_REGION"}:
        assert name in ours or name.removeprefix("METAFLOW_") in metaflows, f"nobody reads {name}"


def test_with_the_outputs_set_the_flow_asks_for_nothing_more(created: Created) -> None:
    from steps.batch.destination import prepare, secret_names

    variables = {name: value for name, value in created.outputs.items() if re.fullmatch(r"[A-Z0-9_]+", name)}
    assert prepare(["run", "--with", "batch"], dict(variables)) == []
    assert secret_names(variables) == [created.outputs["CHESS_GRPO_SECRETS"]]


def test_both_files_of_variables_are_written_from_the_outputs(
    created: Created, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("METAFLOW_HOME", raising=False)
    monkeypatch.setattr("sys.argv", ["stack_variables", "--stack", "chess-grpo"])
    assert stack_variables.main() == 0
    shell, metaflow = tmp_path / ".chess-grpo" / "chess-grpo.env", tmp_path / ".metaflowconfig" / "config_chess-grpo.json"
    assert f". {shell}" in capsys.readouterr().out
    given = json.loads(metaflow.read_text())
    assert given["METAFLOW_BATCH_JOB_QUEUE"] == "chess-grpo-cpu"
    exported = dict(re.findall(r"^export (\w+)=(\S*)$", shell.read_text(), re.MULTILINE))
    variables = {name: value for name, value in created.outputs.items() if re.fullmatch(r"[A-Z0-9_]+", name)}
    assert {**given, **exported}.items() >= variables.items()
    assert exported["STACK_DoorId"] == created.resources["DoorMachine"]
    monkeypatch.setattr("sys.argv", ["stack_variables", "--stack", "other"])
    assert stack_variables.main() == 1
    assert "the outputs of the stack other cannot be read (" in capsys.readouterr().err


def _package(name: str) -> Path:
    """Return a package's folder, without the seconds that its import takes."""
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _strings(path: Path) -> set[str]:
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_the_servers_command_has_only_options_that_mlflow_knows(template: Template) -> None:
    [command] = template["Resources"]["MlflowTask"]["Properties"]["ContainerDefinitions"][0]["Command"]
    sources = (_package("mlflow") / "cli" / "__init__.py", _package("mlflow") / "utils" / "cli_args.py")
    known = {option for path in sources for text in _strings(path) for option in text.split("/")}
    used = set(re.findall(r"--[a-z-]+", command))
    assert len(used) == 9
    assert used <= known


def test_the_servers_image_is_of_the_locked_version(template: Template) -> None:
    [locked] = re.findall(r"^mlflow==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert template["Parameters"]["MlflowImage"]["Default"] == f"ghcr.io/mlflow/mlflow:v{locked}-full"


def test_the_script_that_makes_accounts_can_be_read_by_python(template: Template) -> None:
    container = template["Resources"]["MlflowTask"]["Properties"]["ContainerDefinitions"][1]
    [script] = container["Command"]
    names = {
        node.slice.value for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    assert names <= {secret["Name"] for secret in container["Secrets"]}


def test_the_pages_costs_are_the_sums_that_it_says() -> None:
    page = (ROOT / "docs" / "aws.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([\d.]+(?: [*] [\d.]+)+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 19
    for formula, amount in rows:
        assert float(amount) == pytest.approx(math.prod(float(factor) for factor in formula.split(" * ")), abs=0.006), formula
    [total] = re.findall(r"^\| \*\*sum\*\* \| \| \*\*([\d.]+)\*\* \|$", page, re.MULTILINE)
    assert float(total) == pytest.approx(sum(float(amount) for _, amount in rows[:12]), abs=0.001)


def test_the_page_names_what_the_template_has(template: Template) -> None:
    page = (ROOT / "docs" / "aws.md").read_text()
    assert f"{len(RULES)} rules over the parsed template" in page
    assert f"{len(OVER_PERMISSIONS)} over-permissions" in page
    parameters = re.findall(r"\b([A-Z][a-z]+(?:[A-Z][a-z]+)+|Door)=(?!=)", page)
    assert len(parameters) >= 8
    assert set(parameters) <= set(template["Parameters"])
