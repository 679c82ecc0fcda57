"""Lint of the prose in docstrings, comments, messages and pages: `python -m infra.prose` prints each line to mend and exits with 1."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_FIRST: Final = re.compile(r"(Of|By|With|For|In|At|Where|What|Who|Whom|Whose|That|Those|These|Them|It|Its|As|From)\b(?!-)")
"""First words of a docstring that leaves out its noun, such as `Of the batch.`"""
_BANNED: Final = re.compile(
    r"\b(whom|nobody|somebody|of today|goes aside|decides nothing|(?:is|are|was|were) (?:handed|told(?! apart)))\b"
    r"|, for (?:it|they|there|nobody)\b",
    re.IGNORECASE,
)
_BRITISH: Final = re.compile(
    r"\b(whilst|learnt|grey|licence|centred?|analys(?:ed?|ing)|(?:label|model|cancel|travel)l(?:ed|ing)"
    r"|(?:col|fav|behavi|neighb)our(?:s|ed|ing)?"
    r"|(?:optimi|initiali|normali|regulari|recogni|summari|seriali|minimi|maximi|organi|reali|penali)s(?:e[ds]?|ers?|ing|ation))\b",
    re.IGNORECASE,
)
_LONGEST: Final = 30
"""Maximum words of a sentence in a message or page. Numbers and words of one letter do not count, and a quote in backticks is one word."""
_END: Final = re.compile(r"(?<=[.!?:;])[\"')\]]*\s+|\n\s*\n|\n\s*(?=[-*|#>]|\d+\. )|\s\|\s|<br>")
"""Ends of sentences, paragraphs, list entries and table cells."""
_NO_PROSE: Final = re.compile(r"```.*?```|<!--.*?-->|<[^>]+>|\]\([^)]*\)|^ {4}[^\n]*$|https?://\S+", re.DOTALL | re.MULTILINE)
"""Unchecked parts of a page: code blocks, comments, tags, link targets and addresses."""
_QUOTED: Final = re.compile(r"`[^`]*`")
Breaches = Iterator[tuple[int, str]]
"""Line number, from 1, and broken rule."""


def main() -> None:
    # This file is left out, because it names the banned words.
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md", ":!infra/prose.py"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names if (ROOT / name).is_file()}  # Deleted files are listed too.
    found = [f"{name}:{line}: {rule}" for name, text in texts.items() for line, rule in breaches(name, text)]
    sys.exit("\n".join(found) or None)


def breaches(name: str, text: str) -> Breaches:
    """Strings in tests are data, not messages."""
    yield from _in_page(text) if name.endswith(".md") else _in_module(text, has_messages=not name.startswith("tests/"))


def _in_module(text: str, *, has_messages: bool) -> Breaches:
    tree = ast.parse(text)
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    docstrings = [node for node in strings if isinstance(node.value, str)]
    for node in docstrings:
        if first := _FIRST.match(str(node.value)):
            yield node.lineno, f'a docstring begins with "{first[0]}": begin with the noun or the verb'
        yield from _wrong_words(node.lineno, str(node.value))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _wrong_words(token.start[0], token.string)
    for line, message in _messages(tree, set(map(id, docstrings))) if has_messages else ():
        yield from _wrong_words(line, message)
        for _, sentence in _sentences(message):
            yield from _too_long(line, sentence)


def _in_page(text: str) -> Breaches:
    prose = _NO_PROSE.sub(lambda match: "\n" * match[0].count("\n"), text)  # Line breaks stay, so line numbers are right.
    yield from _wrong_words(1, prose)
    for line, sentence in _sentences(prose):
        yield from _too_long(1 + line, sentence)


def _messages(tree: ast.AST, docstrings: set[int]) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that is no docstring; `{}` stands for an f-string's values."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values, lineno=line):
                yield line, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in values)
            case ast.Constant(value=str(text), lineno=line) if id(node) not in docstrings | parts:
                yield line, text


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    begin = 0
    for end, next_begin in [*(match.span() for match in _END.finditer(text)), (len(text), len(text))]:
        yield text.count("\n", 0, begin), text[begin:end]
        begin = next_begin


def _wrong_words(line: int, text: str) -> Breaches:
    text = _QUOTED.sub(lambda match: "\n" * match[0].count("\n"), text)
    for pattern, rule in ((_BANNED, "name the actor, in plain words"), (_BRITISH, "use American spelling")):
        for match in pattern.finditer(text):
            yield line + text.count("\n", 0, match.start()), f'"{match[0]}": {rule}'


def _too_long(line: int, sentence: str) -> Breaches:
    words = re.findall(r"[A-Za-z][A-Za-z'-]+", _QUOTED.sub("code", sentence))
    if len(words) > _LONGEST:
        yield line, f'{len(words)} words in a sentence, at most {_LONGEST}: "{" ".join(sentence.split())[:60]} ..."'


if __name__ == "__main__":
    main()
