"""The page of the run's story: what it says of how training ended."""

import pytest

from steps.reporting import _because, _nats


@pytest.mark.parametrize(
    ("entropy", "words"), [(1.234, "1.23 nats"), (0.0, "0.00 nats"), (None, "not known (a rollback had just been made)")]
)
def test_entropy_is_named_or_said_to_be_unknown(entropy: float | None, words: str) -> None:
    assert _nats(entropy) == words


def test_a_stop_says_why_and_a_spent_budget_needs_no_words() -> None:
    assert _because({"message": "entropy is critical"}) == " (entropy is critical)"
    assert _because({"message": ""}) == ""
