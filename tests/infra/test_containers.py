"""The dev container and the MLflow server name what exists: read only, because no docker is here.

`proofs/test_mlflow_server.py` starts the server's command.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from page_code import DOCS

from steps.cli.ui import command as ui

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text()
COMPOSE = ROOT / "infra" / "compose.yaml"


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    facts = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert isinstance(facts, dict)
    return facts


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose = yaml.safe_load(COMPOSE.read_text())
    named = {mount.partition(":")[0] for service in compose["services"].values() for mount in service["volumes"]}
    assert named == compose["volumes"].keys()
    return dict(compose["services"])


def test_the_dev_container_is_the_image_for_cpus(container: dict[str, Any]) -> None:
    build = container["build"]
    folder = ROOT / ".devcontainer"
    assert (folder / build["dockerfile"]).resolve() == ROOT / "infra" / "Dockerfile"
    assert (folder / build["context"]).resolve() == ROOT, "the image copies files by their paths from the root"
    assert build["args"].keys() <= set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.MULTILINE))
    assert "TORCH_INDEX" not in build["args"], "another index is another image"
    assert set(build["options"]) <= set(container["runArgs"]), "built and run on one platform"


def test_the_dev_container_uses_the_user_and_the_packages_of_the_image(container: dict[str, Any]) -> None:
    assert f"--home-dir /home/chess --shell /usr/sbin/nologin {container['remoteUser']}\n" in DOCKERFILE
    [site] = re.findall(r"echo (\S+) >", container["postCreateCommand"])
    prefix, _, rest = site.partition("/lib/")
    assert f"install.sh {prefix} --image" in DOCKERFILE
    assert re.search(rf"ARG PYTHON_IMAGE=python:{re.escape(rest.partition('/')[0].removeprefix('python'))}\.", DOCKERFILE)
    assert set(re.findall(r"/home/\S+?/venv", json.dumps(container))) == {"/home/chess/venv"}


def test_the_forwarded_ports_are_those_of_the_commands(container: dict[str, Any]) -> None:
    [port] = [option.default for option in ui.params if option.name == "port"]
    labels = {port: "chess-grpo ui", 8123: "chess-grpo play --port 8123"}
    assert container["forwardPorts"] == list(labels)
    assert container["portsAttributes"] == {str(number): {"label": label} for number, label in labels.items()}
    assert labels[8123] in (DOCS / "commands.md").read_text()


def test_the_server_is_the_locked_mlflow(services: dict[str, Any]) -> None:
    recipe, command = services["mlflow"]["build"]["dockerfile_inline"], services["mlflow"]["command"]
    [base] = re.findall(r"^FROM (\S+)$", recipe, re.MULTILINE)
    assert f"ARG PYTHON_IMAGE={base}\n" in DOCKERFILE
    [version] = re.findall(r"mlflow\[auth\]==([\d.]+)", recipe)
    assert re.search(rf"^mlflow=={re.escape(version)} ", (ROOT / "requirements-run.lock").read_text(), re.MULTILINE)
    assert command[:2] == ["mlflow", "server"]


def test_only_the_proxy_is_reached_from_outside_and_the_page_says_what_to_set_and_open(services: dict[str, Any]) -> None:
    mlflow, caddy = services["mlflow"], services["caddy"]
    assert "ports" not in mlflow
    [port] = [word.partition("=")[2] for word in mlflow["command"] if word.startswith("--port=")]
    assert caddy["command"].endswith(f"--to mlflow:{port}")
    page = (DOCS / "aws.md").read_text()
    assert "docker compose --file infra/compose.yaml up" in page
    for name in re.findall(r"\$\{(\w+)", COMPOSE.read_text()):
        assert name in page, f"{name} is to be set by whoever starts the server"
    assert [each.partition(":")[0] for each in caddy["ports"]] == ["80", "443"]
    assert "ports 80 and 443" in page
