"""The lint of prose: each rule reports a bad line at its number and no good line."""

import pytest

from infra.prose import breaches

LONG = "word " * 31
SHORT = "word " * 30
CASES = {
    "first word of a docstring": (
        'x = 1\n"""Of both sides."""\n', 'x = 1\n"""In-memory copy of both sides."""\n', 'a docstring begins with "Of"',
    ),
    "banned word of a docstring": ('x = 1\n"""Player whom it beat."""\n', 'x = 1\n"""Player that lost."""\n', '"whom"'),
    "banned word of a comment": ("x = 1\ny = 2  # The user is told it.\n", "x = 1\ny = 2  # It prints it, told apart.\n", '"is told"'),
    "banned word of a message": ('x = 1\ny = f"{x} is late, for it waits"\n', 'x = 1\ny = f"{x} waits, for example"\n', '", for it"'),
    "British spelling": ('x = 1\n"""Optimiser."""\n', 'x = 1\n"""Optimizer, and interim analyses."""\n', '"Optimiser"'),
    "long message": (f'x = 1\ny = f"{{x}} {LONG}"\n', f'x = 1\ny = f"{{x}} {SHORT}; {SHORT}"\n', "31 words"),
    "quoted name": ('x = 1\n"""A colour."""\n', 'x = 1\n"""A `colour`."""\n', '"colour"'),
}  # fmt: skip
PAGES = {
    "long sentence": (f"Title.\n{LONG}\n", f"Title.\n{SHORT}.\n- {SHORT}\n| {SHORT} | {SHORT} |\n", "31 words"),
    "banned word": ("Title.\nNobody reads it.\n", "Title.\nNo program reads it.\n", '"Nobody"'),
    "code": (f"Title.\n{LONG}\n", f"Title.\n```\n{LONG}\n```\n[word](https://{LONG.replace(' ', '-')})\n", "31 words"),
}


@pytest.mark.parametrize(
    ("name", "case"), [*(("grpo/a.py", case) for case in CASES.values()), *(("a.md", case) for case in PAGES.values())]
)
def test_a_bad_line_is_reported_with_its_number_and_a_good_line_is_not(name: str, case: tuple[str, str, str]) -> None:
    bad, good, rule = case
    [(line, reported)] = breaches(name, bad)
    assert (line, reported[: len(rule)]) == (2, rule)
    assert list(breaches(name, good)) == []


def test_strings_of_tests_are_data_but_their_docstrings_are_prose() -> None:
    text = f'"""Checks."""\nx = "nobody {LONG}"\n\n\ndef test() -> None:\n    """For nobody."""\n'
    assert [line for line, _ in breaches("tests/test_a.py", text)] == [6, 6]
    assert {line for line, _ in breaches("grpo/a.py", text)} == {2, 6}
