"""The stack, created in moto from the template."""

import copy
import json
from typing import Any

import boto3
from stack_rules import Template, of_type

GIVEN = {"CpuImage": "registry/cpu:1", "GpuImage": "registry/gpu:1", "AlarmEmail": "somebody@example.org"}

NOT_IN_MOTO = {
    # moto 5.2.5 makes no such resources from templates; the test makes them through their own services' interfaces.
    "AWS::Budgets::Budget",
    "AWS::S3::BucketPolicy",
    "AWS::SecretsManager::Secret",
    "AWS::ServiceDiscovery::PrivateDnsNamespace",
    "AWS::ServiceDiscovery::Service",
}


class Created:
    """The stack in moto, with what moto cannot make from templates made through its services' own interfaces."""

    def __init__(self, template: Template) -> None:
        from moto.cloudformation.parsing import get_model_map

        self.not_made = {resource["Type"] for resource in template["Resources"].values()} - set(get_model_map())
        self._template = copy.deepcopy(template)
        self._given = dict(GIVEN)
        for name in [name for name, resource in template["Resources"].items() if resource["Type"] in self.not_made]:
            self._make(name, self._template["Resources"].pop(name))
        # moto asks for a role that AWS has by itself (AWSServiceRoleForBatch).
        role = boto3.client("iam").create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        for properties in of_type(self._template, "AWS::Batch::ComputeEnvironment").values():
            properties["ServiceRole"] = role
        parameters = [{"ParameterKey": name, "ParameterValue": value} for name, value in self._given.items()]
        client = boto3.client("cloudformation")
        client.create_stack(
            StackName="chess-grpo", TemplateBody=json.dumps(self._template), Parameters=parameters, Capabilities=["CAPABILITY_IAM"]
        )
        [self.stack] = client.describe_stacks(StackName="chess-grpo")["Stacks"]
        self.outputs = {output["Description"]: output["OutputValue"] for output in self.stack["Outputs"]}
        self.resources = {
            summary["LogicalResourceId"]: summary.get("PhysicalResourceId", "")
            for summary in client.list_stack_resources(StackName="chess-grpo")["StackResourceSummaries"]
            if summary.get("LogicalResourceId")
        }

    def _make(self, name: str, resource: dict[str, Any]) -> None:
        """Make a resource that others refer to, and hand its ARN to the template as a parameter of the same name."""
        properties = resource["Properties"]
        if resource["Type"] == "AWS::SecretsManager::Secret":
            made = properties["GenerateSecretString"]
            client = boto3.client("secretsmanager")
            word = client.get_random_password(PasswordLength=made["PasswordLength"], ExcludePunctuation=True)["RandomPassword"]
            text = (
                json.dumps({**json.loads(made["SecretStringTemplate"]), made["GenerateStringKey"]: word})
                if "GenerateStringKey" in made
                else word
            )
            self._given[name] = client.create_secret(Name=name, SecretString=text)["ARN"]
        elif resource["Type"] in ("AWS::ServiceDiscovery::PrivateDnsNamespace", "AWS::ServiceDiscovery::Service"):
            self._given[name] = f"arn:aws:servicediscovery:us-east-1:123456789012:{name}"
        else:
            assert resource["Type"] in ("AWS::S3::BucketPolicy", "AWS::Budgets::Budget"), "nothing refers to these"
            return
        self._template["Parameters"][name] = {"Type": "String"}
        self._template = _with_references(self._template, name)


def _with_references(node: Any, name: str) -> Any:
    """Return the template with attributes of a resource read as its parameter."""
    if isinstance(node, dict):
        if set(node) == {"Fn::GetAtt"} and node["Fn::GetAtt"][0] == name:
            return {"Ref": name}
        return {key: _with_references(value, name) for key, value in node.items()}
    return [_with_references(value, name) for value in node] if isinstance(node, list) else node
