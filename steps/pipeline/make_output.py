"""How an output is made: a step's body fills a folder that goes into the store, and what it has so far can survive a kill."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from steps.step_io.work import Sink, TerminalSink, Work
from steps.store.outputs import StepOutput, StepProgress, Store


def make_output(
    store: Store,
    step: str,
    version: str,
    *,
    facts: Mapping[str, Any],
    body: Callable[[Work], None],
    goes_on: bool,
    is_fresh: bool,
    sinks: tuple[Sink, ...],
    terminal: TerminalSink,
    whose: Mapping[str, Any] | None = None,
) -> StepOutput:
    """Return a new output, made by `body`.

    Args:
        store: where it goes.
        step: name of the step.
        version: of the output.
        facts: for its manifest.
        body: fills the folder of the `Work` it is given.
        goes_on: whether the body is given a progress folder, which nobody else has meanwhile, to go on from after a kill.
        is_fresh: begin with an empty progress folder.
        sinks: who takes the records, and takes them again after a kill.
        terminal: takes them once.
        whose: facts of the run and its machine, kept with shared progress.

    Raises BusyError when `goes_on` and another process is making this version.
    """
    progressing: AbstractContextManager[StepProgress | None] = (
        store.progressing(step, version, is_fresh=is_fresh, facts=whose) if goes_on else nullcontext()
    )
    with progressing as progress:
        if (made := store.find(step, version)) is not None:
            return made  # By another process, after we looked and before the lock was ours.
        with store.writing(step, version, facts) as folder:
            work = Work(
                folder,
                sinks,
                terminal=terminal,
                progress_folder=None if progress is None else progress.folder,
                on_kept=None if progress is None else progress.save,
            )
            body(work)
            work.write_history()
    written = store.find(step, version)
    assert written is not None
    return StepOutput(**{**written, "reused": False})
