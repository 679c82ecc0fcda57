"""Hash of the code that computes a step's output, a part of the step's version (hash of all that the output depends on).

Docstrings, comments, functions' annotations, and texts of errors and prints do not count.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from grpo.base.files import sha256_file, sha256_json, sha256_text
from grpo.settings.kinds import KINDS
from steps.run.kinds import PARTS

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("steps", "data_checks", "grpo")
_IN_EVERY_STEP: Final = ("steps.run.device", "steps.run.work")
_LEFT_OUT: Final = (
    # The version contains the values from these modules, so their code does not count.
    *("grpo.settings.grpo", "grpo.settings.language", "grpo.settings.tree"),
    *("steps.run.machine", "steps.run.outside", "steps.run.step"),
    "grpo.metrics.table",  # Metrics' names are in the code that logs; the rest is text.
    "steps.common.live_diagnosis",  # No output contains its results.
)
_TABLES: Final[Mapping[str, Mapping[str, Any]]] = {"grpo.settings.kinds": KINDS, "steps.run.kinds": PARTS}
"""Module -> table with a row for each kind of policy. Only the row of the policy's kind counts."""
# These two import a module by a computed name: the network, the kind's `competitor`.
_NETWORKS: Final = "grpo.policy.networks"
_OPEN: Final = "steps.common.policies.open"
_DATA: Final = {
    "grpo.viewer.page": ("grpo/viewer/pages/*",),
    "steps.pages.templates": ("steps/pages/*.j2", "steps/pages/kinds/{kind}.md.j2"),
}
"""Module -> patterns of its data files, relative to `ROOT`."""
_VIEWS: Final = ("STEP", "card")  # The version has the values of `STEP`, and `card` changes no output.
_MESSAGE_CALLS: Final = ("print", "say", "warn")


@cache
def code_hash(module: str, kind: str, network: str) -> str:
    """`module`: dotted name. `kind` and `network`: settings of `policy`."""
    code = code_of(module, kind, network)
    patterns = (pattern.format(kind=kind) for name in _DATA.keys() & code.keys() for pattern in _DATA[name])
    data = {path.relative_to(ROOT).as_posix(): path for pattern in patterns for path in ROOT.glob(pattern)}
    return sha256_json({name: sha256_text(text) for name, text in code.items()} | {name: sha256_file(path) for name, path in data.items()})


def code_of(module: str, kind: str, network: str) -> dict[str, str]:
    """Return module -> text that counts, for `module`, `_IN_EVERY_STEP`, and all modules that these import."""
    by_name = {_NETWORKS: [f"{_NETWORKS}.{network}"], _OPEN: [PARTS[kind].competitor]}
    code: dict[str, str] = {}
    waiting = [module, *_IN_EVERY_STEP]
    while waiting:
        name = waiting.pop()
        if name in _TABLES:
            code[name] = repr(_TABLES[name][kind])
            continue
        path = None if name in code or name.startswith(_LEFT_OUT) else _path_of(name)
        if path is not None:
            code[name], imports = _without_words(path.read_text(encoding="utf-8"))
            waiting += [*imports, *by_name.get(name, [])]
    return dict(sorted(code.items()))


def _path_of(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py") if name.startswith(_PACKAGES) else ()
    return next(filter(Path.is_file, files), None)


@cache
def _without_words(text: str) -> tuple[str, frozenset[str]]:
    """Return the text that counts, and possible modules: `from a import b` gives `a` and `a.b`, because `b` may be a function."""
    tree, remover = ast.parse(text), _WordRemover()
    tree.body = [node for node in tree.body if not _is_view(node)]
    remover.visit(tree)
    # Imports that only the removed parts use do not count.
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    imports = sorted((bound, target) for bound, target in remover.imports if bound in used)
    names = (name for _, target in imports for name in (target, target.rpartition(".")[0]))
    return f"{imports}{ast.dump(tree)}", frozenset(names)


def _is_view(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in _VIEWS
    return False


class _WordRemover(ast.NodeTransformer):
    def __init__(self) -> None:
        self.imports: list[tuple[str, str]] = []  # Name in the module, imported dotted name.

    def visit(self, node: ast.AST) -> Any:
        match node:
            case ast.Import(names=names):
                self.imports += [(alias.asname or alias.name.partition(".")[0], alias.name) for alias in names]
                return None
            case ast.ImportFrom(module=module, names=names):
                assert module is not None, "a relative import: give the package's name"
                self.imports += [(alias.asname or alias.name, f"{module}.{alias.name}") for alias in names]
                return None
            case ast.Expr(value=ast.Constant()):
                return None
            case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), keywords=keywords)) if name in _MESSAGE_CALLS:
                if not any(keyword.arg == "file" for keyword in keywords):  # The file may be an output, so the text counts.
                    _TextRemover().visit(node)
            case ast.Raise(exc=ast.Call() as error):
                error.args, error.keywords = [], []
            case ast.Assert():
                node.msg = None
            case ast.FunctionDef():
                node.returns = None
            case ast.arg():
                node.annotation = None
        return self.generic_visit(node)


class _TextRemover(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> Any:
        return None if isinstance(node.value, str) else node
