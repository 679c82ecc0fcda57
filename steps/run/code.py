"""The code that computes an output, without its words: docstrings, comments, annotations, messages and log lines change no result.

What counts are the modules that a step's module imports, directly or indirectly, inside functions too. Of the packages of `_BY_NAME`, which
every step touches, only what is taken by name counts. Classes of settings do not: their values are in the version. What describes metrics
does not: their names are in the code that logs them. A data file counts where a module beside it names it.

A message stays where it can become data: where some `except` of the same code takes the text of such an error.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from grpo.base.files import sha256_file, sha256_json, sha256_text

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("steps", "data_checks", "grpo")
_BY_NAME: Final = ("grpo.settings.", "grpo.metrics.", "steps.run.")
_DESCRIBES: Final = ("grpo.settings.metrics.METRICS", "grpo.settings.metrics.EVENTS")
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    "network": ("steps.policies.network",),
    "language": ("grpo.language.", "steps.language.", "steps.policies.language"),
}
"""Kind of policy -> what only its runs reach, although others import it where they open a policy."""
_VIEWS: Final = ("steps.live_diagnosis",)
"""What a step's code imports to tell people what happens, and no output depends on."""
_IN_EVERY_STEP: Final = (
    "steps.run.device.torch_device",
    "steps.run.work.Part",
    "steps.run.work.Work.write_history",
    "steps.run.work.record_row",
)
"""What `Work` does for a body, which has it without an import, and which decides bits of the output."""
_SPEAKERS: Final = ("print", "say", "warn")
_DESCRIPTIONS: Final = ("description", "help")
"""Keywords whose text is for people."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class _Source:
    module: str
    tree: ast.Module
    left_out: frozenset[int]
    """Ids of nodes."""
    imports: tuple[tuple[str, str], ...]
    """Name here, and dotted name of what it is; a name may have several."""
    definitions: Mapping[str, ast.AST]
    """By name, methods as `Class.method`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A module that counts, or one of its definitions."""

    source: _Source
    path: Path
    node: ast.AST

    def kept(self, words: Collection[int] = (), below: ast.AST | None = None) -> list[ast.AST]:
        """Return the nodes that count of it, or of a part of it."""
        found: list[ast.AST] = []
        waiting = [below or self.node]
        while waiting:
            node = waiting.pop()
            if id(node) not in self.source.left_out and id(node) not in words:
                found.append(node)
                waiting += ast.iter_child_nodes(node)
        return found

    def text(self, words: Collection[int]) -> str:
        """Return what counts of it as a text."""
        return f"{self.imports()}{_text(self.node, self.source.left_out | set(words))}"

    def names(self) -> set[str]:
        """Return the names that it uses."""
        return {node.id for node in self.kept() if isinstance(node, ast.Name)}

    def imports(self) -> list[tuple[str, str]]:
        """Return what it uses of what its module imports."""
        names = self.names()
        return sorted({(bound, target) for bound, target in self.source.imports if bound in names})


@cache
def code_hash(module: str, kind: str) -> str:
    """Return the hash of the code that computes what a module computes for a kind of policy, and of the data files that it reads."""
    pieces = code_of(module, kind)
    words = _words(pieces.values())
    data = {path.relative_to(ROOT).as_posix(): sha256_file(path) for path in _data_files(pieces.values(), words)}
    return sha256_json({name: sha256_text(piece.text(words)) for name, piece in pieces.items()} | data)


def code_of(module: str, kind: str) -> dict[str, _Piece]:
    """Return the modules, and of some modules the definitions, that a module's results depend on, by dotted name."""
    others = (*_VIEWS, *(name for other, names in _OF_KIND.items() if other != kind for name in names))
    found: dict[str, _Piece] = {}
    waiting, seen = [module, *_IN_EVERY_STEP], set[str]()
    while waiting:
        asked = waiting.pop()
        located = None if asked in seen else _located(asked)
        seen.add(asked)
        if located is None or located[0] in found or located[0].startswith(others):
            continue
        name, piece = located
        found[name] = piece
        waiting += [target for _, target in piece.imports()]
        if not isinstance(piece.node, ast.Module):
            waiting += [f"{piece.source.module}.{each}" for each in piece.names() & piece.source.definitions.keys()]
    return dict(sorted(found.items()))


def _located(name: str) -> tuple[str, _Piece] | None:
    """Return what a dotted name is the name of, with its own name; None for what does not count."""
    parts = name.split(".")
    for length in range(len(parts) if parts[0] in _PACKAGES else 0, 0, -1):
        module, rest = ".".join(parts[:length]), ".".join(parts[length:])
        place = ROOT.joinpath(*parts[:length])
        path = next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)
        if path is None:
            continue
        source = _source(module, path.read_text(encoding="utf-8"))
        if not rest or not name.startswith(_BY_NAME):
            return module, _Piece(source, path, source.tree)
        node = source.definitions.get(rest)
        is_settings = isinstance(node, ast.ClassDef) and name.startswith("grpo.settings.")
        return None if node is None or is_settings or name in _DESCRIBES else (name, _Piece(source, path, node))
    return None


@cache
def _source(module: str, text: str) -> _Source:
    tree = ast.parse(text)
    left_out = frozenset(id(node) for parent in ast.walk(tree) for node in _left_out(parent)) | _declaration(module, tree)
    imports: list[tuple[str, str]] = []
    for node in _Piece(_Source(module, tree, left_out, (), {}), ROOT, tree).kept():
        if isinstance(node, ast.Import):
            imports += [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{module}: import from the package by its name"
            imports += [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    left_out |= {id(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}
    return _Source(module, tree, left_out, tuple(imports), dict(_definitions(tree)))


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, _Function | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{each.name}", each) for each in node.body if isinstance(each, _Function))
        yield from ((name, node) for name in _assigned(node))


def _declaration(module: str, tree: ast.Module) -> frozenset[int]:
    """Return the declaration and the card of a step's file: the one is in the version by value, the other is a view."""
    is_step = module.startswith("steps.") and module.count(".") == 1
    nodes = ((node, getattr(node, "name", None) or next(iter(_assigned(node)), "")) for node in tree.body)
    return frozenset(id(node) for node, name in nodes if is_step and name in ("STEP", "card"))


def _assigned(node: ast.AST) -> list[str]:
    """Return the names that an assignment binds, if it is one."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)]


def _left_out(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that no result depends on, whatever else there is: docstrings, annotations, imports for type checkers.

    Of the fields of classes the annotations stay, but for their texts: dataclasses and pydantic take meaning from them.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        yield from node.body
    if isinstance(node, _Function) and node.returns:
        yield node.returns
    if isinstance(node, ast.arg) and node.annotation:
        yield node.annotation
    if isinstance(node, ast.keyword) and node.arg in _DESCRIPTIONS:
        yield from _texts(node.value)
    blocks = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
    for each in (each for block in blocks if isinstance(block, list) for each in block if isinstance(each, ast.AnnAssign)):
        yield from _texts(each.annotation) if isinstance(node, ast.ClassDef) else (each.annotation,)


def _words(pieces: Collection[_Piece]) -> set[int]:
    """Return the ids of the nodes that only make up messages: of errors, of assertions, of what is printed or logged."""
    kept = [(piece, list(piece.kept())) for piece in pieces]
    bases = {node.name: {_name(base) for base in node.bases} for _, nodes in kept for node in nodes if isinstance(node, ast.ClassDef)}
    told: set[str] = set()
    while True:
        silent = {name for name in bases if _lineage(name, bases) & told} | told
        words: set[int] = set()
        for piece, nodes in kept:
            said = [(part, node) for node in nodes for part in _messages(node, silent)]
            words |= {id(part) for part, _ in said}
            lines = [getattr(node, "lineno", 0) for _, node in said]
            for scope in (node for node in nodes if isinstance(node, _Function | ast.Module)):
                if any(isinstance(scope, ast.Module) or scope.lineno <= line <= (scope.end_lineno or line) for line in lines):
                    words |= _built_before(piece, scope, words)
        handlers = ((piece, node) for piece, nodes in kept for node in nodes if isinstance(node, ast.ExceptHandler) and node.name)
        more = {name for piece, handler in handlers for name in _told(piece, handler, words)}
        if more <= told:
            return words
        told |= more


def _messages(node: ast.AST, silent: Collection[str]) -> Iterator[ast.AST]:
    """Yield what a node says to people. Errors of the classes `silent` keep their arguments, because code reads them."""
    if isinstance(node, ast.Assert) and node.msg:
        yield node.msg
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute) and target.attr == "args" for target in node.targets):
        yield node  # An error's text that goes on with it.
    if isinstance(node, ast.Raise) and isinstance(error := node.exc, ast.Call):
        name = _name(error.func)
        is_class = name[:1].isupper()  # Else a function, which makes the error.
        yield from (*error.args, *error.keywords) if is_class and name not in silent else ()
    if isinstance(node, ast.Expr) and isinstance(said := node.value, ast.Call) and _name(said.func) in _SPEAKERS:
        is_written = any(keyword.arg == "file" for keyword in said.keywords)
        yield from () if is_written else _spoken(node, (*said.args, *said.keywords))


def _built_before(piece: _Piece, scope: ast.AST, words: Collection[int]) -> set[int]:
    """Return the ids of assignments to names that nothing but messages uses: locals of a function, private names of a module."""
    nodes = piece.kept(words, scope)
    said = {node.id for node in piece.kept((), scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used |= {name for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    fields = {id(field) for node in nodes if isinstance(node, ast.ClassDef) for field in node.body}
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None and id(node) not in fields:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {target.id for target in targets if isinstance(target, ast.Name)}
            is_ours = isinstance(scope, _Function) or all(name.startswith("_") for name in bound)
            if is_ours and len(bound) == len(targets) and bound <= said - used:
                found |= {id(part) for part in _spoken(node, (node.value,))}
    return found


def _told(piece: _Piece, handler: ast.ExceptHandler, words: Collection[int]) -> set[str]:
    """Return the classes that a handler catches, if it does more with the error than look at its class and number."""
    nodes = piece.kept(words, handler)
    harmless = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "errno"}
    harmless |= {id(node.args[0]) for node in nodes if isinstance(node, ast.Call) and _name(node.func) == "isinstance"}
    if not any(isinstance(node, ast.Name) and node.id == handler.name and id(node) not in harmless for node in nodes):
        return set()
    return {_name(node) for node in ast.walk(handler.type or handler)} - {""}


def _lineage(name: str, bases: Mapping[str, set[str]]) -> set[str]:
    """Return the project's classes that a class is derived from."""
    above = {base for base in bases.get(name, ()) if base in bases}
    return above.union(*(_lineage(base, bases) for base in above))


def _spoken(node: ast.AST, parts: Collection[ast.AST]) -> Iterator[ast.AST]:
    """Yield a node whose parts are words; only its texts where something is called, which may do more."""
    is_plain = not any(isinstance(each, ast.Call | ast.NamedExpr | ast.Await) for part in parts for each in ast.walk(part))
    yield from (node,) if is_plain else (text for part in parts for text in _texts(part))


def _texts(node: ast.AST) -> Iterator[ast.AST]:
    yield from (each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


def _text(node: object, left_out: Collection[int]) -> str:
    """Return a syntax tree as a text, without positions and without the nodes that are left out."""
    if isinstance(node, list):
        return f"[{','.join(_text(each, left_out) for each in node if id(each) not in left_out)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and id(value) not in left_out)
    return f"{type(node).__name__}({','.join(f'{name}={_text(value, left_out)}' for name, value in fields)})"


def _data_files(pieces: Collection[_Piece], words: Collection[int]) -> set[Path]:
    """Return the files that modules name which lie beside them or below, and those that such files name."""
    found: set[Path] = set()
    for piece in pieces:
        if not (beside := _files_beside(piece.path.parent)):
            continue
        texts = [node.value for node in piece.kept(words) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        waiting = [path for path in beside if any("." in text and path.as_posix().endswith(text) for text in texts)]
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                content = path.read_text(encoding="utf-8", errors="replace")
                waiting += [other for other in beside if other.name in content]
    return found


@cache
def _files_beside(folder: Path) -> tuple[Path, ...]:
    return tuple(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc"))
