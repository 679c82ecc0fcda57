"""The table of metrics: complete, unambiguous, and the only names there are."""

import pytest

from grpo.diagnosis.records import Event, Record


def test_a_record_takes_declared_names_only_and_names_the_others() -> None:
    record = Record(3, {"grpo/loss": 0.5, "grpo/entropy/opening": 1.0})
    assert (record.step, record.metrics["grpo/loss"]) == (3, 0.5)
    with pytest.raises(ValueError, match=r"not declared in grpo/settings/metrics.py: grpo/entropi, grpo/los$"):
        Record(3, {"grpo/los": 0.5, "grpo/loss": 0.5, "grpo/entropi": 1.0})


def test_an_event_has_a_declared_name() -> None:
    with pytest.raises(ValueError, match=r"^event 'recovery_startd' is not declared in grpo/settings/metrics.py$"):
        Event("recovery_startd", "")
