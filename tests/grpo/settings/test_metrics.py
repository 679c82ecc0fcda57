"""The table of metrics: complete, unambiguous, and the only names there are."""

import pytest

from grpo.diagnosis.records import Event, Record
from grpo.settings.metrics import METRICS


def test_every_end_of_an_interval_lies_beside_its_middle() -> None:
    for name, (unit, _) in METRICS.items():
        if name.endswith(("_low", "_high")):
            assert unit == METRICS[name.rpartition("_")[0]][0]


def test_a_record_takes_declared_names_only_and_names_the_others() -> None:
    record = Record(3, {"grpo/loss": 0.5, "grpo/entropy/opening": 1.0})
    assert (record.step, record.metrics["grpo/loss"]) == (3, 0.5)
    with pytest.raises(ValueError, match=r"not declared in grpo/settings/metrics.py: grpo/entropi, grpo/los$"):
        Record(3, {"grpo/los": 0.5, "grpo/loss": 0.5, "grpo/entropi": 1.0})


def test_an_event_has_a_declared_name() -> None:
    with pytest.raises(ValueError, match=r"^event 'recovery_startd' is not declared in grpo/settings/metrics.py$"):
        Event("recovery_startd", "")
