"""The images hold what the steps need, pinned, and nothing else: rules read from the Dockerfiles; what needs no docker is run."""

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = {"gpu": ROOT / "infra" / "Dockerfile", "cpu": ROOT / "infra" / "Dockerfile.cpu"}
MADE_OF = {
    "pyproject.toml",
    "requirements-run.lock",
    "requirements-language.lock",
    "requirements-torch.lock",
    "infra/install.sh",
    "infra/stockfish.sha256",
    "infra/entrypoint.sh",
}
ENVIRONMENT = {
    "METAFLOW_SKIP_INSTALL_DEPENDENCIES": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GX_ANALYTICS_ENABLED": "false",
    "PYTHONUNBUFFERED": "1",
    "HOME": "/home/chess",
    "PATH": "/opt/chess-grpo/bin:/usr/games:${PATH}",
}
ENTRYPOINT = "/usr/local/bin/chess-grpo-entrypoint"
_BASE = re.compile(r"python:3\.11\.\d+-slim-bookworm(@sha256:[0-9a-f]{64})?")
_SECRET = re.compile(r"SECRET|TOKEN|PASS(WORD|WD)|KEY|CREDENTIAL", re.IGNORECASE)
_LEAVES_LISTS = "rm -rf /build /var/lib/apt/lists/*"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, its continued lines joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return self.text.split()


def instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        found.append(Instruction(name.upper(), " ".join(rest.split())))
    return found


def image_faults(text: str) -> set[str]:
    """Return what is wrong with a Dockerfile, a word each."""
    found = instructions(text)

    def named(name: str) -> list[Instruction]:
        return [instruction for instruction in found if instruction.name == name]

    arguments = dict(word.partition("=")[::2] for argument in named("ARG") for word in argument.words)
    environment = dict(word.partition("=")[::2] for setting in named("ENV") for word in setting.words)
    bases = [re.sub(r"\$\{(\w+)\}", lambda name: arguments.get(name[1], ""), base.text) for base in named("FROM")]
    users = [user.text for user in named("USER")]
    runs = [run.text for run in named("RUN")]
    copied = [word for copy in named("COPY") for word in copy.words[:-1] if not word.startswith("--")]
    apt = [run for run in runs if "apt-get install" in run]
    wanted = [word for run in apt for word in re.findall(r"apt-get install ([^&]*)", run)[0].split() if not word.startswith("-")]
    installs = [run for run in runs if "/build/infra/install.sh /opt/chess-grpo --image" in run]
    checks = {
        "base": len(bases) == 1 and all(_BASE.fullmatch(base) for base in bases),
        "root": bool(users) and all(re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) for user in users[-1:]),
        "root later": bool(users) and "USER" in [i.name for i in found if i.name in {"RUN", "USER", "COPY"}][-1:],
        "secret": not any(_SECRET.search(name) for name in {*arguments, *environment}),
        "secret mount": "--mount=type=secret" not in text,
        "add": not named("ADD"),
        "copied": set(copied) == MADE_OF,
        "download": not any(re.search(r"curl|wget|https?://|git clone|pip install", run) for run in runs),
        "install.sh": len(installs) == 1 and _LEAVES_LISTS in installs[0],
        "extra": arguments.get("EXTRA") == '""' and all("--image ${EXTRA:+--${EXTRA}} &&" in run for run in installs),
        "apt pinned": all(re.fullmatch(r"[a-z0-9+.-]+=\S+", word) for word in wanted),
        "apt lean": all("--no-install-recommends" in run and "rm -rf /var/lib/apt/lists/*" in run for run in apt),
        "environment": environment.items() >= ENVIRONMENT.items(),
        "entrypoint": [i.text for i in named("ENTRYPOINT")] == ['["chess-grpo-entrypoint"]']
        and f"--chmod=0755 infra/entrypoint.sh {ENTRYPOINT}" in [copy.text for copy in named("COPY")],
        "health": [i.text for i in named("HEALTHCHECK")] == ["NONE"],
        "labels": {"title", "description", "licenses", "revision"}
        <= {name for label in named("LABEL") for name in re.findall(r"org\.opencontainers\.image\.(\w+)=", label.text)},
        "torch": not re.search(r"torch[=<>~]", "\n".join(runs)),
    }
    return {name for name, holds in checks.items() if not holds}


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_both_images_are_pinned_lean_without_root_and_without_secrets(kind: str) -> None:
    assert image_faults(DOCKERFILES[kind].read_text()) == set()


MUTATIONS = [
    ("base", "python:3.11.13-slim-bookworm\nFROM", "python:3.11-slim\nFROM"),
    ("base", "python:3.11.13-slim-bookworm\nFROM", "python:latest\nFROM"),
    ("base", "python:3.11.13-slim-bookworm\nFROM", "python:3.12.1-slim-bookworm\nFROM"),
    ("base", "FROM ${PYTHON_IMAGE}", "FROM python:3.11"),
    ("root", "USER 10001:10001", "USER root"),
    ("root", "USER 10001:10001", "USER 0:0"),
    ("root", "USER 10001:10001", "USER chess"),  # Kubernetes cannot tell that a name is not root's.
    ("root", "USER 10001:10001", ""),
    ("root later", "HEALTHCHECK NONE", "RUN touch /home/chess/mine\nHEALTHCHECK NONE"),
    ("secret", "ARG REVISION=unknown", "ARG REVISION=unknown\nARG AWS_SECRET_ACCESS_KEY"),
    ("secret", "PYTHONUNBUFFERED=1", "PYTHONUNBUFFERED=1 MLFLOW_TRACKING_PASSWORD=x"),
    ("secret mount", "RUN useradd", "RUN --mount=type=secret,id=pip useradd"),
    ("add", "HEALTHCHECK NONE", "ADD https://example.org/x /x\nHEALTHCHECK NONE"),
    ("copied", "COPY pyproject.toml", "COPY .env pyproject.toml"),
    ("copied", "COPY pyproject.toml", "COPY steps pyproject.toml"),
    ("copied", "COPY pyproject.toml", "COPY . pyproject.toml"),
    ("copied", " infra/stockfish.sha256", ""),
    ("download", "RUN useradd", "RUN curl -O stockfish.tar && useradd"),
    ("install.sh", "/opt/chess-grpo --image", "/opt/chess-grpo"),
    ("extra", "--image ${EXTRA:+--${EXTRA}}", "--image --${EXTRA}"),  # Without the extra: an empty word, which is an option's name.
    ("extra", "--image ${EXTRA:+--${EXTRA}}", "--image"),
    ("extra", 'ARG EXTRA=""', "ARG EXTRA=language"),
    ("install.sh", _LEAVES_LISTS, "rm -rf /build"),
    ("apt pinned", "RUN useradd", "RUN apt-get install --no-install-recommends git && rm -rf /var/lib/apt/lists/* && useradd"),
    ("apt lean", "RUN useradd", "RUN apt-get install git=1:2.39.5-0 && useradd"),
    *(("environment", f"{name}={value}", "") for name, value in ENVIRONMENT.items()),
    ("entrypoint", 'ENTRYPOINT ["chess-grpo-entrypoint"]', ""),
    ("entrypoint", "--chmod=0755 ", ""),
    ("health", "HEALTHCHECK NONE", ""),
    ("labels", "org.opencontainers.image.revision", "revision"),
    ("torch", "RUN useradd", "RUN pip install torch==2.13.0 && useradd"),
]


@pytest.mark.parametrize("kind", DOCKERFILES)
@pytest.mark.parametrize(("fault", "old", "new"), MUTATIONS, ids=[f"{fault}-{number}" for number, (fault, _, _) in enumerate(MUTATIONS)])
def test_each_check_of_an_image_sees_its_fault(kind: str, fault: str, old: str, new: str) -> None:
    text = DOCKERFILES[kind].read_text()
    assert old in text
    assert fault in image_faults(text.replace(old, new))


def test_the_images_differ_in_torch_compiler_and_driver_alone() -> None:
    ours = {kind: instructions(path.read_text()) for kind, path in DOCKERFILES.items()}
    only_gpu = [instruction.text for instruction in ours["gpu"] if instruction not in ours["cpu"]]
    only_cpu = [instruction.text for instruction in ours["cpu"] if instruction not in ours["gpu"]]
    label, compiler, install_gpu, settings_gpu = only_gpu
    label_cpu, index, install_cpu, settings_cpu = only_cpu
    assert label.replace("GPU", "CPU") == label_cpu
    assert "g++=" in compiler
    assert index == "TORCH_INDEX=https://download.pytorch.org/whl/cpu"
    assert install_cpu == f'TORCH_INDEX="${{TORCH_INDEX}}" {install_gpu}'
    assert settings_gpu.replace(" NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility", "") == settings_cpu


def test_nothing_goes_to_the_builder_but_what_the_images_are_made_of() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules[1:]} == MADE_OF
    assert all((ROOT / name).is_file() for name in MADE_OF)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files that an image is made of, in a folder of their own: what is left out of the image is left out here."""
    for name in MADE_OF:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def install(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder / "infra" / "install.sh"
    return subprocess.run([script, *words], capture_output=True, text=True, check=False)


def test_an_image_is_not_built_on_another_stockfish(copied: Path) -> None:
    if not Path("/usr/games/stockfish").exists():
        pytest.skip("no Debian Stockfish to be taken for another one: apt-get install stockfish")
    sums = copied / "infra" / "stockfish.sha256"
    sums.write_text(re.sub(r"(?m)^[0-9a-f]{4}", "0000", sums.read_text()))
    refused = install(copied, str(copied / "venv"), "--image")
    assert refused.returncode == 1
    assert "is not the one that infra/stockfish.sha256 knows" in refused.stderr
    assert not (copied / "venv").exists()


FAKE_UV = """#!/bin/sh
echo "$@" >>{log}
case "$2" in find) echo {python} ;; esac
"""


def without_python311(folder: Path, uv: str | None) -> dict[str, str]:
    """Return an environment whose PATH has the shell's programs and no Python, and this uv if there is one."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "id", "grep", "cat", "sha256sum", "cut", "du", "sleep", "echo", "rm"):
        (programs / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    if uv is not None:
        (programs / "uv").write_text(uv)
        (programs / "uv").chmod(0o755)
    return {"PATH": str(programs), "CHESS_GRPO_STOCKFISH": "/an/engine"}


def test_where_there_is_no_python311_uv_gets_one(copied: Path) -> None:
    # It is no Python either, but says its version, and then that it was asked to make the environment.
    python = copied / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && echo 3.11 && exit\necho "asked: $@" >&2\nexit 3\n')
    python.chmod(0o755)
    (copied / "requirements.lock").touch()
    environment = without_python311(copied, FAKE_UV.format(log=copied / "log", python=python))
    done = subprocess.run([copied / "infra" / "install.sh", "env"], env=environment, capture_output=True, text=True, check=False)
    assert (copied / "log").read_text().splitlines() == [
        "python install --quiet 3.11",
        "python find --no-project --managed-python 3.11",
    ]
    assert "asked: -m venv env" in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("python", "told"),
    [
        (None, "python3.11 is not there, and uv did not get it; install Python 3.11"),
        ("/nowhere/python3.12", "PYTHON=/nowhere/python3.12 is not there"),
    ],
)
def test_without_any_python_the_message_names_what_to_install(copied: Path, python: str | None, told: str) -> None:
    environment = without_python311(copied, "#!/bin/sh\nexit 1\n") | ({} if python is None else {"PYTHON": python})
    done = subprocess.run([copied / "infra" / "install.sh", "env"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert told in done.stderr
    assert not (copied / "env").exists()


def test_the_checksum_is_of_the_version_that_is_installed() -> None:
    version = re.findall(r"^stockfish_version=(\S+)$", (ROOT / "infra" / "install.sh").read_text(), re.MULTILINE)
    assert len(version) == 1
    assert f"stockfish={version[0]};" in (ROOT / "infra" / "stockfish.sha256").read_text()


@pytest.mark.parametrize(("words", "told"), [(["--fast"], "--fast is not an option"), ([], "usage:")])
def test_an_install_with_other_words_is_refused(copied: Path, words: list[str], told: str) -> None:
    refused = install(copied, *words)
    assert refused.returncode != 0
    assert told in refused.stderr


@pytest.mark.prove
def test_the_environment_of_an_image_with_the_extra_knows_language_models(copied: Path) -> None:
    prefix = copied / "image"
    made = install(copied, str(prefix), "--image", "--language")
    assert made.returncode == 0, made.stderr
    asked = "import transformers; from transformers import AutoModelForCausalLM; print(transformers.__version__)"
    ran = subprocess.run([prefix / "bin" / "python", "-c", asked], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert f"transformers=={ran.stdout.strip()}" in (ROOT / "requirements-language.lock").read_text()
    for lock in ("run", "language"):
        digest = hashlib.sha256((ROOT / f"requirements-{lock}.lock").read_bytes()).hexdigest()
        assert (prefix / f"{lock}-lock").read_text().strip() == digest


@pytest.mark.prove
def test_the_environment_of_an_image_runs_the_whole_flow(copied: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "image"
    made = install(copied, str(prefix), "--image")
    assert made.returncode == 0, made.stderr
    python = prefix / "bin" / "python"
    listed = subprocess.run([python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True).stdout
    installed = {line.partition("==")[0].lower().replace("_", "-") for line in listed.splitlines()}
    assert installed & {"pytest", "mypy", "ruff", "moto", "hypothesis", "chess-grpo"} == set()
    assert {"boto3", "requests", "torch", "metaflow", "mlflow", "chess"} <= installed
    code = tmp_path / "code"
    for package in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(ROOT / package, code / package)
    environment = {
        "PATH": f"{prefix}/bin:/usr/games:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "METAFLOW_USER": "tester",
        "CHESS_GRPO_DEVICE": "cpu",
    }
    ran = subprocess.run(
        [python, "flows/chess_grpo.py", "--config-value", "settings", 'preset = "test"', "run"],
        cwd=code,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert sys.prefix not in ran.stdout + ran.stderr
