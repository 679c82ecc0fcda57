"""The command `chess-grpo track`: tells the tracking store what runs of this home could not tell it while it was away, and W&B too."""

import argparse
import sys
from typing import Final

from grpo.base.errors import PlainError
from steps.runtime.machine import MIRROR, Machine, Mirror

_A_DAY: Final = 86_400.0
_AT_WORK: Final = " (of a step at work, which tells them itself)"


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `track`."""
    track = commands.add_parser(
        "track",
        description="Tell the tracking store (MLFLOW_TRACKING_URI) what runs of this home (CHESS_GRPO_HOME) could not tell it while it was"
        f" away, and Weights & Biases, where {MIRROR} is on. What was told already is not told twice, however often this is run.",
    )
    track.add_argument("--list", action="store_true", dest="only_lists", help="only say what waits")
    track.set_defaults(run=deliver_outbox)


class MirrorError(PlainError, RuntimeError):
    """W&B was not told; the message says why."""

    may_pass = True


def deliver_outbox(given: argparse.Namespace) -> int:
    """Deliver or list the outboxes of all runs of this home; return 0 when nothing is left, 1 when something is.

    Raises TrackingAwayError when the store does not answer, and MirrorError when W&B does not.
    """
    from steps.tracking.outages import TrackingAwayError
    from steps.tracking.tracker import Tracker

    machine = Machine.here()
    tracker = Tracker(machine, must_answer=False)
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
    num_left += _tell_mirror(machine, only_lists=given.only_lists)
    return 1 if num_left else 0


def _tell_mirror(machine: Machine, *, only_lists: bool) -> int:
    """Tell W&B what it was not told whole, and return how many steps of runs still wait."""
    from steps.tracking.wandb_mirror import LOG, MIRROR_FOLDER, last_line, mirror_outbox, mirror_process

    outbox = mirror_outbox(machine.home)
    num_waiting = outbox.num_journals()
    if not num_waiting:
        return 0
    if only_lists or machine.mirror == Mirror.OFF:
        how = "" if machine.mirror != Mirror.OFF else f": {MIRROR}={Mirror.ONLINE} chess-grpo track tells it"
        print(f"{num_waiting:,} steps wait to be told to W&B{how}")
        return num_waiting if machine.mirror != Mirror.OFF else 0
    log = (machine.home / MIRROR_FOLDER / "track").with_suffix(LOG)
    process = mirror_process(machine, log=log)
    process.communicate()
    if process.returncode:
        raise MirrorError(
            f"W&B was not told of {outbox.num_journals():,} steps ({last_line(log)}): run this again later; all it said is in {log}"
        )
    log.unlink()
    num_left = outbox.num_journals()
    print(f"W&B: {num_waiting - num_left:,} steps told, {num_left:,} wait{_AT_WORK if num_left else ''}")
    return num_left
