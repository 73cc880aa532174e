"""Checkpoints of the tape: a part of a model keeps nothing for backward and is computed again when backward needs it.

In: a function and its arguments. Out: its result, whose nodes on the tape share a Frame instead of saved values. The
first of them that is asked for its values runs the function again; the nodes of that run hand theirs over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import dispatch
from .autodiff import OpNode
from .errors import GradientError
from .provenance import Site, site
from .tensor import Tensor


class Frame:
    """One call of a function that will be run again. `nodes`: what it put on the tape; `draws`: the random words it used."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], where: Site, same_draws: bool) -> None:
        self.fn, self.args, self.kwargs, self.site = fn, args, kwargs, where
        self.nodes: list[weakref.ref[OpNode]] = []
        self.saved: list[dict[str, int]] = []  # versions of what each node would have saved
        self.draws: list[Sequence[Any]] | None = [] if same_draws else None
        self.versions = [(t, t._storage.version) for t in _tensors((args, kwargs))]

    # ---- what autodiff and random numbers ask of the frame in use ----

    def add(self, node: OpNode) -> None:
        """A node was recorded."""
        self.nodes.append(weakref.ref(node))

    def draw(self, words: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """The words of one random draw."""
        drawn = words()
        if self.draws is not None:
            self.draws.append(drawn)
        return drawn

    def restore(self) -> None:
        """Run the function again and give every node what it would have saved."""
        for t, version in self.versions:
            if t._storage.version != version:
                raise GradientError(
                    f"an argument ({t.layout}) of a checkpoint was changed in place before backward\n  at {self.site}\n"
                    f"  clone() it before the change"
                )
        again = _Again(self.draws)
        with dispatch.enable_grad(), dispatch.current().recomputing():
            _within(again, self.fn, self.args, self.kwargs)
        old = [ref() for ref in self.nodes]
        if [n.op for n in again.nodes] != [n.op if n is not None else m.op for n, m in zip(old, again.nodes)] or len(old) != len(
            again.nodes
        ):
            raise GradientError(
                f"a checkpoint computed something else the second time: {len(again.nodes)} recorded ops, not {len(old)}\n  at {self.site}\n"
                f"  the function must do the same whenever it is called with the same arguments"
            )
        for node, made, versions in zip(old, again.nodes, self.saved, strict=True):
            if node is not None and made.versions != versions:
                raise GradientError(
                    f"a tensor that {made.name} uses inside a checkpoint was changed in place before backward\n  recorded at {made.site}\n"
                    f"  call backward() before changing parameters, or clone() the tensor"
                )
        for node, made in zip(old, again.nodes, strict=True):
            if node is not None and not node.freed:
                node.args, node.versions, node.frame = made.args, made.versions, None
        self.args, self.kwargs, self.versions = (), {}, []


class _Again:
    """The frame of the second run: keeps the nodes, and repeats the draws."""

    def __init__(self, draws: list[Sequence[Any]] | None) -> None:
        self.nodes: list[OpNode] = []
        self.draws = None if draws is None else iter(draws)

    def add(self, node: OpNode) -> None:
        self.nodes.append(node)

    def draw(self, words: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        drawn = None if self.draws is None else next(self.draws, None)
        return words() if drawn is None else drawn


def _within(frame: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    before, dispatch.state.frame = dispatch.state.frame, frame
    try:
        return fn(*args, **kwargs)
    finally:
        dispatch.state.frame = before


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in parts for t in _tensors(v)]


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = False, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """function(*args, **kwargs), without keeping its intermediate values for backward, which runs it again.

    Trades time for memory, eagerly and compiled. The function must do the same when it runs again; random draws are
    repeated unless preserve_rng_state is False. Gradients reach arguments and whatever else the function uses, such as
    parameters. `use_reentrant` is accepted and makes no difference. Source: arXiv:1604.06174.
    """
    if not dispatch.is_grad_enabled():
        return function(*args, **kwargs)
    frame = Frame(function, args, kwargs, site(), preserve_rng_state)
    result = _within(frame, function, args, kwargs)
    for ref in frame.nodes:
        node = ref()
        frame.saved.append({} if node is None else node.versions)
        if node is not None:
            node.args, node.versions, node.frame = {}, {}, frame
    return result
