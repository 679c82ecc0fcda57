"""Writes what the AWS stack says into two files: variables for shells, and a profile of Metaflow.

.venv/bin/python -m infra.stack_variables --stack chess-grpo        # writes ~/.chess-grpo/chess-grpo.env

The shell file exports the outputs whose description is a variable's name, the others as STACK_OUTPUT, and reads the password of MLflow's
account from AWS Secrets Manager whenever a shell sources it: no secret is in either file. Metaflow's own settings are in its profile alone
(`METAFLOW_PROFILE`), so that notebooks have them too.
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import replace_file
from steps.preflight.batch import profile_path

_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]+")
_OF_METAFLOW: Final = "METAFLOW_"
_ACCOUNT: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
_GET: Final = 'aws secretsmanager get-secret-value --secret-id "${CHESS_GRPO_SECRETS%%,*}" --query SecretString --output text'
_READ: Final = "import json, sys; print(json.load(sys.stdin)[sys.argv[1]])"


class StackError(PlainError, RuntimeError):
    """The stack's outputs cannot be read; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The stack's outputs."""

    variables: Mapping[str, str]
    """By the variable that reads them."""
    others: Mapping[str, str]
    """By the output's name."""


def read_outputs(stack: str) -> Outputs:
    """Return a stack's outputs, read from CloudFormation in the environment's account and region. Raises StackError."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        [found] = boto3.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    except (BotoCoreError, ClientError) as error:
        raise StackError(
            f"the outputs of the stack {stack} cannot be read ({error}): check its name, AWS_DEFAULT_REGION, and who"
            " `aws sts get-caller-identity` says that you are"
        ) from error
    rows: list[dict[str, Any]] = found.get("Outputs", [])
    variables = {row["Description"]: row["OutputValue"] for row in rows if _VARIABLE.fullmatch(row.get("Description", ""))}
    if not variables:
        raise StackError(
            f"the stack {stack} is {found['StackStatus']} and has no outputs of infra/stack.yaml: deploy it first (docs/aws.md)"
        )
    others = {row["OutputKey"]: row["OutputValue"] for row in rows if row.get("Description", "") not in variables}
    return Outputs(variables=variables, others=others)


def profile(outputs: Outputs) -> str:
    """Return the text of a profile of Metaflow (`~/.metaflowconfig/config_NAME.json`) with these outputs."""
    ours = {name: value for name, value in outputs.variables.items() if name.startswith(_OF_METAFLOW)}
    return json.dumps(ours, indent=2, sort_keys=True) + "\n"


def shell_file(stack: str, outputs: Outputs) -> str:
    """Return the text of a file that shells source."""
    rows = {
        "STACK": stack,
        **{f"STACK_{name}": value for name, value in outputs.others.items()},
        "METAFLOW_PROFILE": stack,
        **{name: value for name, value in outputs.variables.items() if not name.startswith(_OF_METAFLOW)},
    }
    lines = [
        f"# Written by infra.stack_variables from the outputs of the stack {stack}. No secret is in this file.",
        *(f"export {name}={shlex.quote(value)}" for name, value in rows.items()),
        "# MLflow's account, read anew by each shell.",
        f"if _account=$({_GET}); then",
        *(f'  export {name}="$(printf %s "$_account" | {shlex.join([sys.executable, "-c", _READ, name])})"' for name in _ACCOUNT),
        "else",
        "  echo \"MLflow's account could not be read: log in to AWS ('aws sso login'), then source this file again\" >&2",
        "fi",
        "unset _account",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write both files and say how a shell reads them."""
    parser = argparse.ArgumentParser(prog="python -m infra.stack_variables", description=__doc__.partition("\n")[0])
    parser.add_argument("--stack", default="chess-grpo", help="name of the stack (chess-grpo)")
    given = parser.parse_args()
    try:
        outputs = read_outputs(given.stack)
    except StackError as error:
        print(f"stack_variables: {error}", file=sys.stderr)
        return 1
    shell, metaflow = Path.home() / ".chess-grpo" / f"{given.stack}.env", profile_path({**os.environ, "METAFLOW_PROFILE": given.stack})
    for path, text in ((shell, shell_file(given.stack, outputs)), (metaflow, profile(outputs))):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    print(f"written: {shell} and {metaflow}. In every new shell: . {shell}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
