"""Computes an output: a step's body fills a folder that goes into the store; its progress can survive a kill."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Sink, Watcher, Work
from steps.store.outputs import StepOutput, StepProgress, Store


def make_output(
    store: Store,
    step: str,
    version: str,
    *,
    facts: Mapping[str, Any],
    body: Callable[[Work], None],
    resumes: bool,
    is_fresh: bool,
    sinks: tuple[Sink, ...],
    terminal: TerminalSink,
    watcher: Watcher | None = None,
) -> StepOutput:
    """Return a new output, computed by `body`.

    Args:
        store: where it goes.
        step: name of the step.
        version: of the output.
        facts: for its manifest.
        body: fills the folder of its `Work`.
        resumes: whether the body has a progress folder, which nobody else has meanwhile, to resume from after a kill.
        is_fresh: begin with an empty progress folder.
        sinks: what logs the records, and logs them again after a kill.
        terminal: logs each of them once.
        watcher: follows the records.

    Raises BusyError when `resumes` and another process is computing this version.
    """
    progressing: AbstractContextManager[StepProgress | None] = (
        store.progressing(step, version, is_fresh=is_fresh) if resumes else nullcontext()
    )
    with progressing as progress:
        if (made := store.find(step, version)) is not None:
            return made  # Another process computed it after we looked and before the lock was ours.
        with store.writing(step, version, facts) as folder:
            work = Work(
                folder,
                sinks,
                terminal=terminal,
                progress_folder=None if progress is None else progress.folder,
                on_saved=None if progress is None else progress.save,
                watcher=watcher,
            )
            body(work)
            terminal.finish()
            work.write_history()
    written = store.find(step, version)
    assert written is not None
    return StepOutput(**{**written, "reused": False})
