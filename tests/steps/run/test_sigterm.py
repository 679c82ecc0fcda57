"""SIGTERM, noted within a block."""

import os
import signal
import threading

from steps.run.sigterm import sigterm_noted


def test_the_handler_is_there_in_the_block_only() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_noted() as is_told:
        assert signal.getsignal(signal.SIGTERM) is not before
        assert not is_told()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_first_is_noted_and_a_second_would_end_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with sigterm_noted() as is_told:
            os.kill(os.getpid(), signal.SIGTERM)
            assert is_told()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_beside_the_main_thread_nothing_is_installed() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with sigterm_noted() as is_told:
            seen.extend((is_told(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False, before]
