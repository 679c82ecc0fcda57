"""The command `chess-grpo track`: delivers the journals of an outage to MLflow, and to Weights & Biases."""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from grpo.base.errors import PlainError
from steps.runtime.machine import MIRROR, Machine, Mirror
from steps.runtime.terminal_lines import say

if TYPE_CHECKING:
    from steps.tracking.journal import JournalFolder

_A_DAY: Final = 86_400.0
_RUNNING_STEP: Final = " (of a running step, which logs them itself)"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `track`."""
    track = commands.add_parser(
        "track",
        description="Log to MLflow (MLFLOW_TRACKING_URI) what runs of this home (CHESS_GRPO_HOME) could not log while offline, and to"
        f" Weights & Biases, if {MIRROR} is on. Running it again logs nothing twice.",
    )
    track.add_argument("--list", action="store_true", dest="only_lists", help="only list what is not logged yet")
    track.set_defaults(run=deliver_journals)


class MirrorError(PlainError, RuntimeError):
    """Logging to W&B failed; the message says why."""

    may_pass = True


def deliver_journals(given: argparse.Namespace) -> int:
    """Deliver or list the journals of all runs of this home; return 0 when nothing is left, 1 when something is.

    Raises TrackingAwayError when the store does not answer, and MirrorError when W&B does not.
    """
    from steps.tracking.outages import TrackingAwayError
    from steps.tracking.tracker import Tracker

    machine = Machine.here()
    tracker = Tracker(machine)
    num_left = 0
    for run, num_waiting in tracker.runs_left().items():
        if not given.only_lists and (reason := tracker.deliver(run, _A_DAY)):
            raise TrackingAwayError(f"{tracker.uri} is away ({reason}): records of MLflow run {run} are left; run this again later")
        left = tracker.runs_left().get(run, 0)
        whose = "" if given.only_lists or not left else _RUNNING_STEP
        say(f"MLflow run {run}: {num_waiting - left:,} steps logged, {left:,} wait{whose}")
        num_left += left
    for path in tracker.journals.refused():
        say(f"{path}: records that the store rejected, each with its reason", sys.stderr)
    if not num_left:
        say(f"Everything is logged to {tracker.uri}.")
    num_left += _deliver_to_mirror(machine, tracker.journals, only_lists=given.only_lists)
    return 1 if num_left else 0


def _deliver_to_mirror(machine: Machine, journals: "JournalFolder", *, only_lists: bool) -> int:
    """Send pending journals to W&B, and return the number of steps that are not logged yet."""
    from steps.tracking.journal import Reader
    from steps.tracking.wandb_mirror import MirrorProcess

    num_waiting = len(journals.left(Reader.WANDB))
    if not num_waiting:
        return 0
    if only_lists or machine.mirror == Mirror.OFF:
        how = "" if machine.mirror != Mirror.OFF else f": {MIRROR}={Mirror.ONLINE} chess-grpo track logs them"
        say(f"{num_waiting:,} steps are not logged to W&B yet{how}")
        return num_waiting if machine.mirror != Mirror.OFF else 0
    why = MirrorProcess(machine).finish("track")
    num_left = len(journals.left(Reader.WANDB))
    if why:
        raise MirrorError(f"W&B does not have {num_left:,} steps ({why}): run this again later")
    say(f"W&B: {num_waiting - num_left:,} steps logged, {num_left:,} wait{_RUNNING_STEP if num_left else ''}")
    return num_left
