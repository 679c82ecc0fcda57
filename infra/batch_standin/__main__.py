"""Run a command against the stand-in: python -m infra.batch_standin -- python flows/chess_grpo.py run --with batch."""

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from grpo.base.errors import PlainError
from infra.batch_standin.standin import batch_standin


def main() -> int:
    """Run the command with the stand-in's settings in its environment, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m infra.batch_standin", description="Run a command against a stand-in for AWS Batch.")
    parser.add_argument("--folder", type=Path, help="for the jobs' logs; without it, a new one under the temporary folder")
    parser.add_argument("--num-jobs", type=int, default=2, help="as many run at once (2)")
    parser.add_argument(
        "--metadata-service", action="store_true", help="with Metaflow's metadata service, which jobs of several nodes need"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="batch-standin-"))

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        with batch_standin(folder, num_jobs=given.num_jobs, has_metadata_service=given.metadata_service) as standin:
            print(f"stand-in at {standin.address}; the jobs' logs are in {folder / 'logs'}", file=sys.stderr, flush=True)
            # It gets SIGTERM if this process is killed.
            command = ["setpriv", "--pdeathsig", "TERM", *given.command]
            with subprocess.Popen(command, env=standin.environment()) as process:
                try:
                    code = process.wait()
                finally:
                    process.terminate()
            return code if code >= 0 else 128 - code
    except PlainError as error:
        print(f"batch_standin: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
