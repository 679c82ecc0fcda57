"""GRPO on several machines (nodes): all train one policy; node 0 computes the output, logs it and stores it.

Each node's step process is an elastic agent of torch, as torchrun's is. It starts the training processes (`steps.nodes.worker`), one per
GPU, and passes SIGTERM on to them. It restarts none: Metaflow's retry does, which knows what no retry can help.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Listener
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from steps.nodes import worker
from steps.nodes.membership import Ending, Membership
from steps.nodes.node import Node
from steps.pipeline.job import Job
from steps.runtime.device import torch_device
from steps.runtime.exit_codes import NO_RETRY, RESUMABLE
from steps.runtime.machine import Machine
from steps.runtime.parent_death import PARENT_VARIABLE
from steps.runtime.process_id import Writer
from steps.runtime.sigterm import Terminated, terminable
from steps.step_io.work import Sink
from steps.store.outputs import StepOutput
from steps.store.versions import ROOT

if TYPE_CHECKING:  # The tracker comes with it, which this process does not use.
    from steps.pipeline.training import OnAssessed

_SECONDS_TO_COME: Final = 1_200.0
"""Time limit for all nodes to come: Batch starts the others after node 0, and each pulls its image."""
_SECONDS_TO_MEET: Final = 60
"""Time limit for the agents to meet, once all nodes are here."""
_SECONDS_TO_EXIT: Final = 120
"""Grace period of a process that got SIGTERM: it may be stuck in an all-reduce with a lost process, or upload its last checkpoint."""
_SECONDS_UNTIL_TOLD_AGAIN: Final = 0.01


def finetune_on_nodes(
    node: Node,
    job: Job,
    boards: StepOutput,
    pretrained: StepOutput,
    sinks: Sequence[Sink] = (),
    *,
    on_assessed: "OnAssessed | None" = None,
) -> StepOutput | None:
    """Fine-tune as `steps.pipeline.training.finetune` does, together with the other nodes; return the output on node 0.

    Raises NodesError and NodeFailedError.
    """
    num_processes = node.num_processes or _num_gpus() or 1
    outputs: list[StepOutput] = []

    def receive(name: str, *given: Any) -> None:
        if name == "finished":
            outputs.extend(given)
        elif name == "assessed":
            if on_assessed is not None:
                on_assessed(*given)
        else:
            for sink in sinks:
                getattr(sink, name)(*given)

    task = {"job": job, "boards": boards, "pretrained": pretrained}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / worker.TASK_FILE).write_text(json.dumps(task))
        with _receiving(folder / worker.RECORDS, receive) if node.index == 0 else nullcontext():
            run_on_nodes(node, (sys.executable, "-m", worker.__name__, name), num_processes)
    return outputs[0] if outputs else None


def run_on_nodes(node: Node, command: Sequence[str], num_processes: int, *, seconds_to_come: float = _SECONDS_TO_COME) -> None:
    """Run a command in so many processes on this node and those of the others, as torchrun does; return when all have ended well.

    A process that fails ends with an exit code of `steps.runtime.exit_codes`, and writes its reason to the error file that torch's agent
    names. However one ends, all nodes end.

    Args:
        node: which machine this is.
        command: program and arguments.
        num_processes: how many processes of it here.
        seconds_to_come: how long to wait for the other nodes.

    Raises NodesError when a node did not come, was lost or was reclaimed, NodeFailedError when one failed for good.
    """
    os.environ[PARENT_VARIABLE] = json.dumps(Writer.here().facts())
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    if node.is_local:  # What listens for the other processes listens to nobody else.
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    membership = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            with terminable():
                membership = Membership.met(node, seconds=seconds_to_come)
                with membership.watched():
                    ending = _run_agent(node, command, num_processes, folder)
        except (SignalException, Terminated):
            # Another node may have lost a process of this one, and ended, before this one's agent saw it fail.
            if why := worker.final_reason(Path(folder)):
                ending = Ending(why, is_final=True)
            else:
                ending = Ending("" if membership is not None and membership.was_stopped else "it got SIGTERM")
    if membership is None:
        raise SystemExit(RESUMABLE)
    membership.settle(ending)


def _run_agent(node: Node, command: Sequence[str], num_processes: int, folder: str) -> Ending | None:
    """Return how this node's processes ended; None for well."""
    config = LaunchConfig(
        min_nodes=node.count,
        max_nodes=node.count,
        nproc_per_node=num_processes,
        run_id=node.name,
        rdzv_backend="static",  # Its store is the membership's, which this process has opened; ranks follow the nodes' indexes.
        rdzv_endpoint=f"{node.address}:{node.port}",
        rdzv_configs={"rank": node.index, "timeout": _SECONDS_TO_MEET},
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
        signals_to_handle="SIGQUIT",  # SIGTERM is `_interruptible`'s, and `nohup` ignores SIGHUP.
        shutdown_timeout=_SECONDS_TO_EXIT,
    )
    try:
        with _interruptible():
            elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        return ending_of(error.failures.values())
    except (DistError, RendezvousError):
        return Ending()  # Another node has left meanwhile.
    return None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise SignalException in the block at the first SIGTERM, as torch's own handler does, but never while a Popen is at work.

    An exception there may leave the Popen's lock taken: the agent would wait for minutes for a process that has ended long ago.
    """
    is_told = False
    later: threading.Timer | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_told, later
        if is_told:
            return  # The agent ends already.
        if any(interrupted.f_globals.get("__name__") == "subprocess" for interrupted, _ in traceback.walk_stack(frame)):
            later = threading.Timer(_SECONDS_UNTIL_TOLD_AGAIN, os.kill, (os.getpid(), number))
            later.start()
            return
        is_told = True
        raise SignalException(f"process {os.getpid()} got signal {number}", sigval=signal.Signals(number))

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        try:
            if later is not None:
                later.join()
        finally:
            signal.signal(signal.SIGTERM, before)


def ending_of(failures: Collection[ProcessFailure]) -> Ending:
    """Return the reason of the processes that failed: a final error first, then one that a process gave, then a signal."""
    for failure in failures:
        if failure.exitcode in (1, NO_RETRY):  # Python ends with 1 after a traceback.
            return Ending(_told(failure) or f"process {failure.local_rank} ended with {failure.exitcode}; its log says why", is_final=True)
    for failure in failures:
        if told := _told(failure):
            return Ending(told)
    for failure in failures:
        if failure.exitcode < 0 and failure.signal_name() != "SIGTERM":  # The agent sends it to the others when one ends.
            return Ending(f"process {failure.local_rank} was ended by {failure.signal_name()}")
    return Ending()


def _told(failure: ProcessFailure) -> str:
    return failure.message if Path(failure.error_file).is_file() else ""


def _num_gpus() -> int:
    return torch.cuda.device_count() if torch_device(Machine.here()).type == "cuda" else 0


@contextmanager
def _receiving(path: Path, receive: Callable[..., None]) -> Iterator[None]:
    """Call `receive` with each message of the first process while the block lasts, in a thread: the agent needs the main one."""
    is_read = threading.Event()

    def listen() -> None:
        with listener.accept() as connection, suppress(EOFError):
            try:
                while True:
                    receive(*connection.recv())
            finally:
                is_read.set()
        threading.Event().wait()  # Linux ends a thread's child processes, which render cards, with the thread (`parent_death`).

    with Listener(str(path)) as listener:
        threading.Thread(target=listen, name="first process", daemon=True).start()
        yield
        is_read.wait()
