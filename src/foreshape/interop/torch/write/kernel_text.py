"""Kernels' source as code for autograd and exports: nothing is written into given places."""

from __future__ import annotations

import ast
import functools
import symtable
from typing import Any, Final

_CHANGING: Final = """
abs add addcdiv addcmul addmm baddbmm bitwise_and bitwise_not bitwise_or ceil clamp cos cumsum div exp expm1 eq floor floor_divide fmod ge gt index_add
index_fill le lerp log log1p log2 logical_and logical_not logical_or logical_xor lt masked_fill mul ne neg pow reciprocal relu remainder round rsqrt scatter
scatter_add sigmoid sign sin sqrt square sub tanh tril triu trunc xlogy
"""
_FUNCTIONS: Final = frozenset(_CHANGING.split())
"""The functions of torch with a form to change a tensor."""
_SAME_MEMORY: Final = "view view_as select narrow unsqueeze squeeze t transpose permute movedim expand reshape flatten unflatten unfold diagonal"
_VIEWS: Final = frozenset(_SAME_MEMORY.split())


@functools.lru_cache(4096)  # here and below: the sources of kernels, read for each file that has them
def plain_text(source: str) -> str:
    """Return a function's source without ``into`` and kept results, and with new values in place of changed temporary ones. Other source stays as it is."""
    tree = ast.parse(source)
    changed = _Plain()
    plain = ast.fix_missing_locations(changed.visit(tree))
    return ast.unparse(plain) if changed.count else source.rstrip()


@functools.lru_cache(4096)
def free_names(source: str) -> frozenset[str]:
    """Return the names taken by a source of its module, or of Python: without annotations."""
    bare = ast.unparse(ast.fix_missing_locations(_Bare().visit(ast.parse(source))))
    names: set[str] = set()
    waiting = [symtable.symtable(bare, "source", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        names.update(s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or (top and not s.is_assigned())))
    return frozenset(names)


@functools.lru_cache(4096)
def all_names(source: str) -> frozenset[str]:
    """Return every name of a source, the ones in annotations among them."""
    return frozenset(node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))


class _Bare(ast.NodeTransformer):
    """The removal of annotations."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is not None:
            return ast.Assign([node.target], self.visit(node.value))
        return ast.Expr(ast.Constant(None))


class _Plain(ast.NodeTransformer):
    """The rewriting of a function. ``count``: of the changes."""

    def __init__(self) -> None:
        self.count = 0
        self.fresh: set[str] = set()
        """The names of new tensors without another reference."""
        self.unpacked: set[str] = set()
        """The names of parts of a tuple."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        args = node.args
        for index, part in reversed([*enumerate(args.kwonlyargs)]):
            if part.arg in ("into", "use"):
                del args.kwonlyargs[index], args.kw_defaults[index]
                self.count += 1
        decorators = [part for part in node.decorator_list if not ast.unparse(part).startswith("lru_cache(")]
        self.count += len(node.decorator_list) - len(decorators)
        node.decorator_list = decorators  # a size in a trace is no key
        outer, self.fresh = self.fresh, _fresh_names(node)
        targets = [t for n in ast.walk(node) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Tuple)]
        self.unpacked = {part.id for t in targets for part in t.elts if isinstance(part, ast.Name)}
        node.body = [*_flat(self.visit(part) for part in node.body)]
        self.fresh = outer
        return node

    def _inner(self, node: ast.AST) -> ast.AST:
        outer, self.fresh = self.fresh, set()
        self.generic_visit(node)
        self.fresh = outer
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._inner(node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        return self._inner(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        return self._inner(node)

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        return self._inner(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in ("into", "use") and isinstance(node.ctx, ast.Load):
            self.count += 1
            return ast.Constant(None)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        truth = _truth(node.test)
        return node if truth is None else node.body if truth else node.orelse

    def visit_If(self, node: ast.If) -> Any:
        node.test = self.visit(node.test)
        truth = _truth(node.test)
        if truth is None:
            node.body = [*_flat(self.visit(statement) for statement in node.body)]
            node.orelse = [*_flat(self.visit(statement) for statement in node.orelse)]
            return node
        return [*_flat(self.visit(statement) for statement in (node.body if truth else node.orelse))]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        stops = isinstance(node.op, ast.Or)
        left = [v for v in node.values if _truth(v) is not (not stops)]
        if any(_truth(v) is stops for v in left) and _truth(left[0]) is stops:
            return left[0]
        if len(left) == len(node.values):
            return node
        return ast.Constant(not stops) if not left else left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Change nothing in place in the last line: a local value of it has no later reader."""
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for part in parts:
            function = part.func if isinstance(part, ast.Call) else None
            if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name) or function.value.id not in self.unpacked:
                continue
            if function.attr.endswith("_") and function.attr[:-1] in _FUNCTIONS:
                function.attr = function.attr[:-1]
                self.count += 1
        self.generic_visit(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call):
            out = next((k for k in call.keywords if k.arg == "out"), None)
            if out is not None and isinstance(out.value, (ast.Name, ast.Subscript, ast.Attribute)):
                call.keywords.remove(out)
                self.count += 1
                self.generic_visit(call)
                target: Any = ast.parse(ast.unparse(out.value)).body[0]
                place = target.value
                place.ctx = ast.Store()
                if isinstance(place, (ast.Subscript, ast.Attribute)):
                    return ast.Assign([place], call)
                return ast.Assign([ast.Subscript(ast.Name(place.id, ast.Load()), ast.Constant(...), ast.Store())], call)
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if isinstance(call.func, ast.Attribute) and name[:-1] in _FUNCTIONS and name.endswith("_"):
                base = call.func.value
                if isinstance(base, ast.Name) and base.id in self.fresh:
                    self.count += 1
                    self._parts(call)
                    call.func.attr = name[:-1]
                    return ast.Assign([ast.Name(base.id, ast.Store())], call)
            self._parts(call)  # the call itself stays: it is for its effect
            return node
        self.generic_visit(node)
        return node

    def _parts(self, call: ast.Call) -> None:
        call.args = [self.visit(a) for a in call.args]
        call.keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in call.keywords]
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
            self._parts(call.func.value)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        out = next((k for k in node.keywords if k.arg == "out"), None)
        if out is not None:
            if isinstance(out.value, ast.Constant) or (
                isinstance(out.value, ast.IfExp) and _truth(out.value.orelse) is False and isinstance(out.value.body, ast.Name)
            ):
                node.keywords.remove(out)
                self.count += 1
            elif isinstance(out.value, ast.Name):
                node.keywords.remove(out)
                self.count += 1
                return ast.NamedExpr(ast.Name(out.value.id, ast.Store()), node)
        elif isinstance(node.func, ast.Attribute):
            name = node.func.attr
            base = node.func.value
            if name.endswith("_") and name[:-1] in _FUNCTIONS:
                if not _is_view(base):
                    self.count += 1
                    node.func.attr = name[:-1]
                elif isinstance(base, ast.Name) and base.id in self.fresh:
                    self.count += 1
                    node.func.attr = name[:-1]
                    return ast.NamedExpr(ast.Name(base.id, ast.Store()), node)
        return node


def _is_view(node: ast.expr) -> bool:
    """Tell whether an expression may be a view of a value with other readers."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (node.func.attr in _VIEWS or node.func.attr.endswith("_")):
        node = node.func.value
    return not isinstance(node, (ast.Call, ast.BinOp))


def _fresh_names(function: ast.FunctionDef) -> set[str]:
    """Return the local names whose tensors are new ones, and have no view under another name."""
    names: set[str] = set()
    shared = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    if any(isinstance(node, (ast.FunctionDef, ast.Global, ast.Nonlocal)) for statement in function.body for node in ast.walk(statement)):
        return set()
    for node in (n for statement in function.body for n in ast.walk(statement)):
        if isinstance(node, (ast.For, ast.With, ast.AugAssign)):
            shared |= {
                n.id for n in ast.walk(node.target if not isinstance(node, ast.With) else node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
        if not isinstance(node, ast.Assign):
            continue
        value, targets = node.value, node.targets
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and _makes_new(value):
            names.add(targets[0].id)
        else:
            shared |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            shared |= {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} if not _makes_new(value) else set()
    return names - shared


def _makes_new(value: ast.expr) -> bool:
    """Tell whether an expression makes a new tensor, as arithmetic and most functions do."""
    if isinstance(value, ast.BinOp):
        return True
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.rstrip("_") in _FUNCTIONS and not _is_view(value)


def _truth(node: ast.expr) -> bool | None:
    """Return whether a test is true, if it is known."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Constant) and node.left.value is None:
        comparator = node.comparators[0]
        if isinstance(comparator, ast.Constant) and comparator.value is None:
            return isinstance(node.ops[0], ast.Is)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand)
        return None if inner is None else not inner
    return None


def _flat(parts: Any) -> Any:
    for part in parts:
        if isinstance(part, list):
            yield from part
        elif part is not None:
            yield part
