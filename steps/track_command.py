"""The command `chess-grpo track`: tells the tracking store what runs of this home could not tell it while it was away."""

import argparse
import sys
from typing import Final

from steps.machine import Machine

_A_DAY: Final = 86_400.0
_AT_WORK: Final = " (of a step at work, which tells them itself)"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `track`."""
    track = commands.add_parser(
        "track",
        description="Tell the tracking store (MLFLOW_TRACKING_URI) what runs of this home (CHESS_GRPO_HOME) could not tell it while it was"
        " away. What was told already is not told twice, however often this is run.",
    )
    track.add_argument("--list", action="store_true", dest="only_lists", help="only say what waits")
    track.set_defaults(run=deliver_outbox)


def deliver_outbox(given: argparse.Namespace) -> int:
    """Deliver or list the outboxes of all runs of this home; return 0 when nothing is left, 1 when something is.

    Raises TrackingAwayError when the store does not answer.
    """
    from steps.outages import TrackingAwayError
    from steps.tracking import Tracker

    tracker = Tracker(Machine.here(), must_answer=False)
    num_left = 0
    for run in tracker.outbox.parents():
        num_waiting = tracker.outbox.num_waiting(run)
        if not given.only_lists and (reason := tracker.deliver(run, _A_DAY)):
            raise TrackingAwayError(f"{tracker.uri} is away ({reason}): records of MLflow run {run} still wait; run this again later")
        left = tracker.outbox.num_waiting(run)
        print(f"MLflow run {run}: {num_waiting - left:,} records told, {left:,} wait{'' if given.only_lists or not left else _AT_WORK}")
        num_left += left
    for path in tracker.outbox.refused():
        print(f"{path}: records that the store would not take, each with its reason", file=sys.stderr)
    if not num_left:
        print(f"Nothing waits to be told to {tracker.uri}.")
    return 1 if num_left else 0
