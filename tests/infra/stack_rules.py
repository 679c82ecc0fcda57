"""What must hold of the stack's template, each a function from the parsed template to what is against it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cfnlint.decode import decode_str

STACK = Path(__file__).resolve().parents[2] / "infra" / "stack.yaml"

Template = dict[str, Any]
Rule = Callable[[Template], Iterator[str]]

ANY_RESOURCE = {
    # Calls that know no resource: AWS accepts nothing but "*" for them.
    "ecr:GetAuthorizationToken",
    "batch:DescribeComputeEnvironments",
    "batch:DescribeJobDefinitions",
    "batch:DescribeJobQueues",
    "batch:DescribeJobs",
    "batch:ListJobs",
    "states:ListStateMachines",
}
_HERE = r"arn:\$\{AWS::Partition\}:%s:\$\{AWS::Region\}:\$\{AWS::AccountId\}:"
REACH = {
    # Service -> what of it may be named in a right: things of the stack, or of Metaflow by its prefix. What is not here is not allowed.
    "batch": r"(Cpu|Gpu|Nodes)Queue|" + _HERE % "batch" + r"(job-definition/metaflow_\*|job/\*)",
    "cloudformation": r"AWS::StackId",
    "dynamodb": r"FanOuts\.Arn",
    "ecr": _HERE % "ecr" + r"repository/\*",
    "events": _HERE % "events" + r"rule/(\$\{AWS::StackName\}_\*|StepFunctionsGetEventsForBatchJobsRule)",
    "iam": r"(Job|Machines|Schedule)Role\.Arn",
    "logs": r"ServiceLogs\.Arn|" + _HERE % "logs" + r"log-group:/aws/batch/job:log-stream:\*",
    "s3": r"Bucket\.Arn|\$\{Bucket\.Arn\}/(metaflow|games|mlflow)/\*",
    "secretsmanager": r"(Database|Admin|Tracking|Forms)Secret|OtherSecrets",
    "ssm": _HERE % "ec2" + r"instance/\$\{DoorMachine\}|arn:\$\{AWS::Partition\}:ssm:\$\{AWS::Region\}::document/"
    r"AWS-StartPortForwardingSessionToRemoteHost|" + _HERE % "ssm" + r"session/\$\{!aws:user(name|id)\}-\*",
    "states": _HERE % "states" + r"(stateMachine|execution):\$\{AWS::StackName\}_\*",
}
_READ_AND_WRITE = "s3:ListBucket s3:GetObject s3:PutObject s3:DeleteObject s3:AbortMultipartUpload"
_START_OF_A_SERVICE = (
    "ecr:GetAuthorizationToken ecr:BatchCheckLayerAvailability ecr:BatchGetImage ecr:GetDownloadUrlForLayer"
    " logs:CreateLogStream logs:PutLogEvents secretsmanager:GetSecretValue"
)
RIGHTS = {
    "JobRole": f"{_READ_AND_WRITE} secretsmanager:GetSecretValue dynamodb:GetItem dynamodb:PutItem dynamodb:UpdateItem",
    "OtherSecretsPolicy": "secretsmanager:GetSecretValue",
    "MachinesRole": "batch:SubmitJob batch:DescribeJobs batch:TagResource batch:TerminateJob dynamodb:GetItem"
    " events:DescribeRule events:PutRule events:PutTargets",
    "ScheduleRole": "states:StartExecution",
    "MetadataStartRole": _START_OF_A_SERVICE,
    "MlflowStartRole": _START_OF_A_SERVICE,
    "MlflowRole": _READ_AND_WRITE,
    "LauncherPolicy": f"{_READ_AND_WRITE} secretsmanager:GetSecretValue cloudformation:DescribeStacks logs:GetLogEvents iam:PassRole"
    " batch:DescribeComputeEnvironments batch:DescribeJobDefinitions batch:DescribeJobQueues batch:DescribeJobs batch:ListJobs"
    " batch:RegisterJobDefinition batch:SubmitJob batch:TagResource batch:TerminateJob"
    " events:PutRule events:PutTargets events:DeleteRule events:DisableRule events:RemoveTargets"
    " ssm:StartSession ssm:ResumeSession ssm:TerminateSession"
    " states:CreateStateMachine states:UpdateStateMachine states:DeleteStateMachine states:DescribeStateMachine states:ListStateMachines"
    " states:StartExecution states:StopExecution states:DescribeExecution states:ListExecutions",
}
"""What each may do at most: what is not needed is not given, on the stack's own things either."""
LOOKED_AT = {"AWS::IAM::Role", "AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::InstanceProfile", "AWS::S3::BucketPolicy"}
"""Kinds of resources that give rights, and whose rights the rules see."""
GIVE_RIGHTS = {"PolicyDocument", "Policies", "ManagedPolicyArns", "ResourcePolicy", "KeyPolicy", "RepositoryPolicyText"}
"""Properties that give rights."""
AMAZONS_POLICIES = {
    # Of agents that are Amazon's own and change with their policy.
    "MachineRole": "arn:${AWS::Partition}:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role",
    "DoorRole": "arn:${AWS::Partition}:iam::aws:policy/AmazonSSMManagedInstanceCore",
}
TRUST = {
    "JobRole": "ecs-tasks.amazonaws.com",
    "MetadataStartRole": "ecs-tasks.amazonaws.com",
    "MlflowStartRole": "ecs-tasks.amazonaws.com",
    "MlflowRole": "ecs-tasks.amazonaws.com",
    "MachineRole": "ec2.amazonaws.com",
    "DoorRole": "ec2.amazonaws.com",
    "MachinesRole": "states.amazonaws.com",
    "ScheduleRole": "events.amazonaws.com",
}
OBJECTS = {
    "${Bucket.Arn}/metaflow/*": {"JobRole", "LauncherPolicy"},
    "${Bucket.Arn}/games/*": {"JobRole", "LauncherPolicy"},
    "${Bucket.Arn}/mlflow/*": {"MlflowRole"},
}
"""Who may read or write which objects."""
SECRETS = {
    "JobRole": {"TrackingSecret"},
    "LauncherPolicy": {"TrackingSecret"},
    "MetadataStartRole": {"DatabaseSecret"},
    "MlflowStartRole": {"AdminSecret", "DatabaseSecret", "FormsSecret", "TrackingSecret"},
    "OtherSecretsPolicy": {"OtherSecrets"},
}
"""Who may read which secrets."""
CONDITIONS = {
    # Rights that are too wide without their condition.
    "ssm:StartSession": {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"}},
    "batch:RegisterJobDefinition": {"BoolIfExists": {"batch:Privileged": "false"}},
    "batch:TerminateJob": {"StringLike": {"aws:ResourceTag/metaflow.flow_name": "ChessGrpo*"}},
}
CONFIDENTIAL = re.compile(r"PASS|PSWD|PWD|SECRET|TOKEN|(?<!PUBLIC)_KEY|CREDENTIAL", re.IGNORECASE)
STUCK = {
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
}


def read_stack() -> Template:
    """Return the template as plain data, short forms (`!Ref`) written out."""
    template, problems = decode_str(STACK.read_text())
    assert not problems, problems
    return json.loads(json.dumps(template, default=str))


def violations(template: Template) -> list[str]:
    """Return what is against the rules, each with its rule's name in front."""
    return [f"{name}: {what}" for name, rule in RULES.items() for what in rule(template)]


def of_type(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    """Return the resources of a type, with their properties, by name."""
    return {name: found.get("Properties", {}) for name, found in template["Resources"].items() if found["Type"] == kind}


def statements(template: Template) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every statement that says what a role or a person may do, with its resource's name."""
    for name, resource in template["Resources"].items():
        properties = resource.get("Properties", {})
        documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
        if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            documents.append(properties["PolicyDocument"])
        for document in documents:
            for statement in document["Statement"]:
                for chosen in statement["Fn::If"][1:] if "Fn::If" in statement else [statement]:
                    if chosen != {"Ref": "AWS::NoValue"}:
                        yield name, chosen


def actions_are_named(template: Template) -> Iterator[str]:
    """No role may do whatever a service knows."""
    for name, statement in statements(template):
        for action in _actions(statement):
            if "*" in action and statement["Effect"] == "Allow":
                yield f"{name} may {action}"


def each_may_do_this_at_most(template: Template) -> Iterator[str]:
    """No role has a right that it does not need, and no other kind of resource gives any, which the rules would not see."""
    for name, statement in statements(template):
        for action in sorted(set(_actions(statement)) - set(RIGHTS.get(name, "").split())):
            yield f"{name} may {action}"
    for name, resource in template["Resources"].items():
        gives = GIVE_RIGHTS & set(resource.get("Properties", {}))
        if resource["Type"] not in LOOKED_AT and (gives or re.search(r"::IAM::|Permission|Policy$", resource["Type"])):
            yield f"{name} is a {resource['Type']}, whose rights nothing looks at"


def rights_end_at_the_stack(template: Template) -> Iterator[str]:
    """A right is for things of the stack, or for everything where the call knows no resources."""
    for name, statement in statements(template):
        for action in _actions(statement):
            service = action.partition(":")[0]
            for resource in _resources(statement):
                if action in ANY_RESOURCE and resource == "*":
                    continue
                if re.fullmatch(REACH.get(service, "nothing"), resource) is None:
                    yield f"{name} may {action} with {resource}"


def data_and_secrets_are_for_those_who_need_them(template: Template) -> Iterator[str]:
    """Objects are reached by prefix and never with their permissions; jobs see the tracking account's secret and no server's own."""
    for name, statement in statements(template):
        actions, resources = set(_actions(statement)), set(_resources(statement))
        objects = {action for action in actions if action.startswith("s3:") and action != "s3:ListBucket"}
        if objects:
            for resource in sorted(resources):
                if name not in OBJECTS.get(resource, ()):
                    yield f"{name} may {sorted(objects)} with {resource}"
            if wide := objects - {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}:
                yield f"{name} may {sorted(wide)}"
        if "secretsmanager:GetSecretValue" in actions and (others := resources - SECRETS.get(name, set())):
            yield f"{name} may read {sorted(others)}"


def roles_are_taken_by_these(template: Template) -> Iterator[str]:
    """A role is for one service, and containers' roles are for this account's containers."""
    for name, role in of_type(template, "AWS::IAM::Role").items():
        [statement] = role["AssumeRolePolicyDocument"]["Statement"]
        if statement["Principal"] != {"Service": TRUST.get(name)}:
            yield f"{name} is for {statement['Principal']}"
        own = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
        if TRUST.get(name) != "ec2.amazonaws.com" and statement.get("Condition") != own:
            yield f"{name} is for {statement['Principal']} of any account"
        given = [_told(arn) for arn in role.get("ManagedPolicyArns", [])]
        if given != [policy for role_name, policy in AMAZONS_POLICIES.items() if role_name == name]:
            yield f"{name} has the policies {given}"


def wide_rights_have_their_conditions(template: Template) -> Iterator[str]:
    """The bastion is no shell, containers have no privileges, jobs of others go on, and a role is passed to the service it is for."""
    for name, statement in statements(template):
        needed = {action: CONDITIONS[action] for action in _actions(statement) if action in CONDITIONS}
        if "iam:PassRole" in _actions(statement):
            services = [TRUST.get(role.removesuffix(".Arn"), "nobody") for role in _resources(statement)]
            needed["iam:PassRole"] = {"StringEquals": {"iam:PassedToService": services[0] if len(services) == 1 else services}}
        for action, condition in sorted(needed.items()):
            if statement.get("Condition") != condition:
                yield f"{name} may {action} if {statement.get('Condition')} and not only if {condition}"


def nothing_is_open(template: Template) -> Iterator[str]:
    """What comes in comes from a named group of the stack, never from addresses."""
    rules = [
        (name, rule)
        for name, group in of_type(template, "AWS::EC2::SecurityGroup").items()
        for rule in group.get("SecurityGroupIngress", [])
    ]
    rules += of_type(template, "AWS::EC2::SecurityGroupIngress").items()
    for name, rule in rules:
        if set(rule) & {"CidrIp", "CidrIpv6", "SourcePrefixListId"} or "SourceSecurityGroupId" not in rule:
            yield f"{name} lets in {rule}"
    for name, group in of_type(template, "AWS::EC2::SecurityGroup").items():
        if not group.get("SecurityGroupEgress"):
            yield f"{name} lets out everything, which is what CloudFormation does when told nothing"


def nothing_has_a_public_address(template: Template) -> Iterator[str]:
    """Machines, services and the database are in subnets whose way out is the NAT gateway."""
    ways = {_told(route["RouteTableId"]): "NatGatewayId" in route for route in of_type(template, "AWS::EC2::Route").values()}
    private = {
        _told(link["SubnetId"])
        for link in of_type(template, "AWS::EC2::SubnetRouteTableAssociation").values()
        if ways.get(_told(link["RouteTableId"]))
    }
    places = {name: made["ComputeResources"]["Subnets"] for name, made in of_type(template, "AWS::Batch::ComputeEnvironment").items()}
    places |= {name: group["SubnetIds"] for name, group in of_type(template, "AWS::RDS::DBSubnetGroup").items()}
    places |= {name: [machine["SubnetId"]] for name, machine in of_type(template, "AWS::EC2::Instance").items()}
    for name, service in of_type(template, "AWS::ECS::Service").items():
        network = service["NetworkConfiguration"]["AwsvpcConfiguration"]
        places[name] = network["Subnets"]
        if network.get("AssignPublicIp") != "DISABLED":
            yield f"{name} asks for a public address"
    for name, subnets in places.items():
        for subnet in sorted({_told(subnet) for subnet in subnets} - private):
            yield f"{name} is in {subnet}, which is not private"
    for name, subnet in of_type(template, "AWS::EC2::Subnet").items():
        if subnet.get("MapPublicIpOnLaunch"):
            yield f"{name} gives out public addresses"


def metadata_needs_a_token(template: Template) -> Iterator[str]:
    """A machine's metadata answers to IMDSv2 alone, and to containers where these must see the spot notice."""
    for name, found in of_type(template, "AWS::EC2::LaunchTemplate").items():
        options = found["LaunchTemplateData"].get("MetadataOptions", {})
        if options.get("HttpTokens") != "required":
            yield f"{name} does not require IMDSv2"
        if options.get("HttpPutResponseHopLimit") != (2 if name == "MachineTemplate" else 1):
            yield f"{name} has hop limit {options.get('HttpPutResponseHopLimit')}"
    for name, made in of_type(template, "AWS::Batch::ComputeEnvironment").items():
        if made["ComputeResources"].get("LaunchTemplate", {}).get("LaunchTemplateId") != {"Ref": "MachineTemplate"}:
            yield f"{name} is not from MachineTemplate"
    for name, machine in of_type(template, "AWS::EC2::Instance").items():
        if machine.get("LaunchTemplate", {}).get("LaunchTemplateId") != {"Ref": "DoorTemplate"}:
            yield f"{name} is not from DoorTemplate"


def disks_are_encrypted(template: Template) -> Iterator[str]:
    """Of machines and of the database."""
    for name, found in of_type(template, "AWS::EC2::LaunchTemplate").items():
        disks = [mapping["Ebs"] for mapping in found["LaunchTemplateData"].get("BlockDeviceMappings", [])]
        if not disks or any(disk.get("Encrypted") is not True or disk.get("VolumeType") != "gp3" for disk in disks):
            yield f"{name} has {disks}"
    for name, database in of_type(template, "AWS::RDS::DBInstance").items():
        if database.get("StorageEncrypted") is not True:
            yield f"{name} is not encrypted"


def the_bucket_is_private(template: Template) -> Iterator[str]:
    """No public access, encrypted, by TLS alone, and it outlives the stack."""
    for name, bucket in of_type(template, "AWS::S3::Bucket").items():
        block = bucket.get("PublicAccessBlockConfiguration", {})
        for setting in ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"):
            if block.get(setting) is not True:
                yield f"{name}: {setting} is not on"
        if "BucketEncryption" not in bucket:
            yield f"{name} is not encrypted"
        if (
            template["Resources"][name].get("DeletionPolicy") != "Retain"
            or template["Resources"][name].get("UpdateReplacePolicy") != "Retain"
        ):
            yield f"{name} would be deleted with the stack"
        policies = [found for found in of_type(template, "AWS::S3::BucketPolicy").values() if found["Bucket"] == {"Ref": name}]
        denied = [
            statement
            for policy in policies
            for statement in policy["PolicyDocument"]["Statement"]
            if (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
            and {_told(resource) for resource in statement["Resource"]} == {f"{name}.Arn", f"${{{name}.Arn}}/*"}
            and statement.get("Condition") == {"Bool": {"aws:SecureTransport": "false"}}
        ]
        if not denied:
            yield f"{name} can be used without TLS"
        if any(statement["Effect"] == "Allow" for policy in policies for statement in policy["PolicyDocument"]["Statement"]):
            yield f"{name}'s own policy allows something"


def progress_expires(template: Template) -> Iterator[str]:
    """The rule's prefix is where `steps` puts progress, beneath the root that the outputs name."""
    root = template["Outputs"]["DatastoreRoot"]["Value"]["Fn::Sub"].removeprefix("s3://${Bucket}/")
    rules = template["Resources"]["Bucket"]["Properties"].get("LifecycleConfiguration", {}).get("Rules", [])
    enabled = [rule for rule in rules if rule["Status"] == "Enabled"]
    if not any(rule.get("Prefix") == f"{root}/chess-grpo/progress/" and rule.get("ExpirationInDays") == 30 for rule in enabled):
        yield "progress of training is kept for ever"
    if not any("AbortIncompleteMultipartUpload" in rule and "Prefix" not in rule for rule in enabled):
        yield "unfinished uploads are kept for ever"
    for rule in enabled:
        if "ExpirationInDays" in rule and not rule.get("Prefix", "").startswith(f"{root}/chess-grpo/progress/"):
            yield f"{rule['Id']} deletes more than progress"


def the_database_is_kept_and_private(template: Template) -> Iterator[str]:
    """Not public, protected, backed up, and its password is nowhere but in its secret."""
    for name, database in of_type(template, "AWS::RDS::DBInstance").items():
        if database.get("PubliclyAccessible") is not False:
            yield f"{name} is public"
        if (
            database.get("DeletionProtection") != {"Ref": "ProtectDatabase"}
            or template["Parameters"]["ProtectDatabase"].get("Default") != "true"
        ):
            yield f"{name} is not protected"
        if {template["Resources"][name].get(policy) for policy in ("DeletionPolicy", "UpdateReplacePolicy")} != {"Snapshot"}:
            yield f"{name} leaves no snapshot"
        if not database.get("BackupRetentionPeriod"):
            yield f"{name} is not backed up"
        if _told(database["MasterUserPassword"]) != "{{resolve:secretsmanager:${DatabaseSecret}:SecretString:password}}":
            yield f"{name}'s password is not its secret's"


def no_secret_is_plain(template: Template) -> Iterator[str]:
    """Secrets are made in Secrets Manager and handed over by name: none is a parameter, a variable's value, a command or an output."""
    for name, parameter in template["Parameters"].items():
        if parameter.get("NoEcho") or (CONFIDENTIAL.search(name) and name != "OtherSecrets"):
            yield f"parameter {name} would carry a secret"
    for task, container in _containers(template):
        for variable in container.get("Environment", []):
            if CONFIDENTIAL.search(variable["Name"]) or "resolve:" in json.dumps(variable["Value"]):
                yield f"{task}/{container['Name']}: {variable['Name']} is given by value"
        if "resolve:" in json.dumps(container.get("Command", [])):
            yield f"{task}/{container['Name']}: a secret in the command"
        for secret in container.get("Secrets", []):
            given = _told(secret["ValueFrom"])
            if not any(given == name or given.startswith(f"${{{name}}}:") for name in of_type(template, "AWS::SecretsManager::Secret")):
                yield f"{task}/{container['Name']}: {secret['Name']} is from no secret of the stack"
    for name, secret in of_type(template, "AWS::SecretsManager::Secret").items():
        if "SecretString" in secret or secret["GenerateSecretString"].get("PasswordLength", 0) < 32:
            yield f"{name} is not made at random"
    for name, output in template["Outputs"].items():
        if "resolve:" in json.dumps(output["Value"]):
            yield f"output {name} shows a secret"


def queues_end_what_cannot_start(template: Template) -> Iterator[str]:
    """A job that can never start is cancelled, with Batch's reason."""
    for name, queue in of_type(template, "AWS::Batch::JobQueue").items():
        limits = queue.get("JobStateTimeLimitActions", [])
        for reason in sorted(STUCK - {limit["Reason"] for limit in limits if limit["MaxTimeSeconds"] <= 86_400}):
            yield f"{name} waits for ever on {reason}"


def services_can_be_stopped(template: Template) -> Iterator[str]:
    """What costs money by the hour while nothing runs has a parameter that turns it off."""
    for name, service in of_type(template, "AWS::ECS::Service").items():
        if service.get("DesiredCount") != {"Fn::If": ["Running", 1, 0]}:
            yield f"{name} runs {service.get('DesiredCount')} tasks, whatever ServicesRunning says"


def logs_end(template: Template) -> Iterator[str]:
    """Every log group is the stack's, and forgets."""
    groups = of_type(template, "AWS::Logs::LogGroup")
    for name, group in groups.items():
        if group.get("RetentionInDays") != {"Ref": "LogDays"}:
            yield f"{name} keeps logs for ever"
    if not any(group["LogGroupName"] == "/aws/batch/job" for group in groups.values()):
        yield "what Batch writes is kept for ever"
    for task, container in _containers(template):
        if _told(container.get("LogConfiguration", {}).get("Options", {}).get("awslogs-group", "")) not in groups:
            yield f"{task}/{container['Name']} writes to a group that is not the stack's"


def spot_comes_first_and_on_demand_behind(template: Template) -> Iterator[str]:
    """The same machines, first at spot prices; jobs of several nodes, which Batch runs on no spot machine, on demand alone."""
    made = {name: found["ComputeResources"] for name, found in of_type(template, "AWS::Batch::ComputeEnvironment").items()}
    for name, queue in of_type(template, "AWS::Batch::JobQueue").items():
        order = sorted(queue["ComputeEnvironmentOrder"], key=lambda entry: entry["Order"])
        found = [made[_told(entry["ComputeEnvironment"])] for entry in order]
        kinds = [environment["Type"] for environment in found]
        if kinds != (["EC2"] if name == "NodesQueue" else ["SPOT", "EC2"]):
            yield f"{name} tries {kinds}"
        if len({json.dumps([environment["InstanceTypes"], environment["Ec2Configuration"]]) for environment in found}) != 1:
            yield f"{name} mixes machines"
    for name, environment in made.items():
        wanted = {"SPOT": "SPOT_PRICE_CAPACITY_OPTIMIZED", "EC2": "BEST_FIT_PROGRESSIVE"}[environment["Type"]]
        if environment["AllocationStrategy"] != wanted:
            yield f"{name} chooses by {environment['AllocationStrategy']}"


def machines_are_of_one_family(template: Template) -> Iterator[str]:
    """Another processor rounds sums differently; so neither a list nor Batch's own choice gets through."""
    for name, made in of_type(template, "AWS::Batch::ComputeEnvironment").items():
        types = made["ComputeResources"]["InstanceTypes"]
        if len(types) != 1 or "Ref" not in types[0]:
            yield f"{name} takes {types}"
            continue
        parameter = template["Parameters"][types[0]["Ref"]]
        for several in ("optimal", "c7i,c7a", "c7i c6i", "default_x86_64"):
            if parameter["Type"] != "String" or re.search(parameter["AllowedPattern"], several):
                yield f"{name}: {types[0]['Ref']} takes {several!r}"


def machines_are_bounded(template: Template) -> Iterator[str]:
    """None is held when there is no work, and a parameter says how many there may be."""
    for name, made in of_type(template, "AWS::Batch::ComputeEnvironment").items():
        resources = made["ComputeResources"]
        if resources["MinvCpus"] != 0 or "DesiredvCpus" in resources:
            yield f"{name} holds machines without work"
        if resources["MaxvCpus"] not in ({"Ref": "MaxCpus"}, {"Ref": "MaxGpuCpus"}):
            yield f"{name} is bounded by {resources['MaxvCpus']}"
        if resources.get("Tags") != {"project": {"Ref": "AWS::StackName"}}:
            yield f"{name}'s machines have no tag to find their costs by"


def spot_machines_drain(template: Template) -> Iterator[str]:
    """A machine with notice gets no further job, and containers have time between SIGTERM and SIGKILL."""
    data = template["Resources"]["MachineTemplate"]["Properties"]["LaunchTemplateData"].get("UserData", {}).get("Fn::Base64", "")
    for setting in ("ECS_ENABLE_SPOT_INSTANCE_DRAINING=true", "ECS_CONTAINER_STOP_TIMEOUT=90s"):
        if f"echo {setting} >>/etc/ecs/ecs.config" not in data:
            yield f"{setting} is not set"
    if not data.startswith("MIME-Version: 1.0\nContent-Type: multipart/mixed;"):
        yield "Batch merges user data only when it is in MIME parts"


def images_are_pinned(template: Template) -> Iterator[str]:
    """An image without a version is another one tomorrow."""
    for name, parameter in template["Parameters"].items():
        if not name.endswith("Image") or parameter["Type"] != "String":
            continue
        if re.search(parameter.get("AllowedPattern", ""), "image"):
            yield f"{name} takes an image without a version"
        if parameter.get("Default", "image:1").endswith(":latest"):
            yield f"{name} is the latest, whichever that is"
    for task, container in _containers(template):
        if "Ref" not in container["Image"]:
            yield f"{task}/{container['Name']} has the image {container['Image']}"


def the_tracking_server_asks_who(template: Template) -> Iterator[str]:
    """MLflow with accounts, for named hosts, with artifacts by way of itself."""
    [server] = [container for task, container in _containers(template) if (task, container["Name"]) == ("MlflowTask", "server")]
    command = " ".join(server["Command"])
    for option in ("--app-name basic-auth", "--allowed-hosts", "--serve-artifacts", "--artifacts-destination"):
        if option not in command:
            yield f"the server is started without {option}"
    if "default_permission = READ" not in command:
        yield "accounts may change what is others'"


def the_budget_tells(template: Template) -> Iterator[str]:
    """Somebody is told before the money is gone, and again when it is going to be."""
    told = {
        notice["Notification"]["NotificationType"]
        for budget in of_type(template, "AWS::Budgets::Budget").values()
        for notice in budget.get("NotificationsWithSubscribers", [])
        if {"SubscriptionType": "EMAIL", "Address": {"Ref": "AlarmEmail"}} in notice["Subscribers"]
    }
    for kind in sorted({"ACTUAL", "FORECASTED"} - told):
        yield f"nobody is told of {kind} costs"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        actions_are_named,
        each_may_do_this_at_most,
        rights_end_at_the_stack,
        data_and_secrets_are_for_those_who_need_them,
        roles_are_taken_by_these,
        wide_rights_have_their_conditions,
        nothing_is_open,
        nothing_has_a_public_address,
        metadata_needs_a_token,
        disks_are_encrypted,
        the_bucket_is_private,
        progress_expires,
        the_database_is_kept_and_private,
        no_secret_is_plain,
        queues_end_what_cannot_start,
        services_can_be_stopped,
        logs_end,
        spot_comes_first_and_on_demand_behind,
        machines_are_of_one_family,
        machines_are_bounded,
        spot_machines_drain,
        images_are_pinned,
        the_tracking_server_asks_who,
        the_budget_tells,
    )
}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _actions(statement: dict[str, Any]) -> list[str]:
    """Return a statement's actions; what is named by exclusion is everything."""
    return _listed(statement.get("Action", "*"))


def _resources(statement: dict[str, Any]) -> list[str]:
    return [_told(resource) for resource in _listed(statement.get("Resource", "*"))]


def _told(value: Any) -> str:
    """Return a resource as the template names it: `Name`, `Name.Attribute`, or the text with its `${...}`."""
    if isinstance(value, str):
        return value
    [(function, argument)] = value.items()
    if function in ("Ref", "Fn::Sub"):
        return argument
    assert function == "Fn::GetAtt", value
    return argument if isinstance(argument, str) else ".".join(argument)


def _containers(template: Template) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, task in of_type(template, "AWS::ECS::TaskDefinition").items():
        for container in task["ContainerDefinitions"]:
            yield name, container
