"""SIGTERM, noted within a block."""

import os
import signal

from steps.run.sigterm import sigterm_noted


def test_in_the_block_the_first_is_noted_and_a_second_would_end_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with sigterm_noted() as is_told:
            assert not is_told()
        assert signal.getsignal(signal.SIGTERM) is before
        with sigterm_noted() as is_told:
            os.kill(os.getpid(), signal.SIGTERM)
            assert is_told()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
