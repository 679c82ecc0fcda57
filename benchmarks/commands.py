"""CPU seconds of the commands that people wait for, and of `show` by MLflow's client, which it used before.

    python benchmarks/commands.py HOME

HOME is a home with a finished run in an SQLite store. User and system time of the process and its children, the least of three.
"""

import os
import resource
import subprocess
import sys

COMMANDS = (
    "--help",
    "--version",
    "shwo last",
    "runs",
    "show last",
    "show 99999",
    "compare last",
    "diagnose last",
    "plan-games --elo 30",
    "match champoin random",
)
CLIENT = "import steps.runs.rows as rows; rows._KNOWN = (); from steps.cli.main import main; main(['show', 'last'])"


def cpu_seconds(command: list[str], home: str) -> float:
    """Return the least of three."""
    environment = {**os.environ, "CHESS_GRPO_HOME": home}
    environment.pop("MLFLOW_TRACKING_URI", None)
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, env=environment, capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(took)


def main() -> None:
    """Print the table."""
    home = sys.argv[1]
    found = {words: cpu_seconds([sys.executable, "-m", "steps.cli.main", *words.split()], home) for words in COMMANDS}
    for words, seconds in found.items():
        print(f"{words:<24} {seconds:6.2f}")
    client = cpu_seconds([sys.executable, "-c", CLIENT], home)
    print(f"show last, by MLflow's client: {client:.2f}, {client / found['show last']:.1f} times as much")


if __name__ == "__main__":
    main()
