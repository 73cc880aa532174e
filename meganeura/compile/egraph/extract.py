"""What to compute of an e-graph: one application for every class of values that is needed, at the least cost of all together.

In: a saturated e-graph. Out: the rewrites that lead from the window's own applications to the choice. Costs: `ast-size` counts
applications, `tensor-traffic` bytes that they read and write. Values that several readers share count once, so the best choice for
one class depends on others: a search starts from the window as it is and from all rewrites together, and changes classes by a
rewrite's results, or back, as long as that saves something. What it finds is never dearer than the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

from ..ir import traffic
from .terms import At, Rewrite, Saturation

SWEEPS = 6  # over all changes, each until none saves anything
INFINITE = float("inf")

Choice = dict[Any, Any]  # class of values -> application that makes it, None for what is there; class of operands -> place
Cost = tuple[float, int]


class Extraction:
    """The search in one e-graph. `wanted`: the rewrites of the best choice, in an order in which they can be applied."""

    def __init__(self, saturation: Saturation, cost: str) -> None:
        self.saturation, self.classes = saturation, saturation.classes
        applied = saturation.applied
        self.costs = [1 if cost == "ast-size" else traffic([a.node]) for a in applied]
        made = {v for a in applied for v in a.outputs}
        given = self.classes.given
        self.there = {given[v] for v in range(len(saturation.values)) if v not in made}
        self.reads = [self._reads(k) for k in range(len(applied))]
        self.origins: dict[int, list[Rewrite]] = {}
        for w in saturation.rewrites:
            for k in w.added:
                self.origins.setdefault(k, []).append(w)
        self.grounds: dict[int, set[int]] = {}
        self.start: Choice = {}
        self.outputs: dict[int, list[Any]] = {k: [given[v] for v in a.outputs] for k, a in enumerate(applied)}
        for k, classes in reversed(self.outputs.items()):
            self.start.update(dict.fromkeys(classes, k))  # the earliest application that makes it
        self.start.update(dict.fromkeys(self.there))
        for o, places in self.classes.places.items():
            self.start[o] = places[0]
        self._own_places()
        self.needed = [self.classes.at[given[v], n] for v, n in saturation._ats]
        makers = {v: k for k, a in enumerate(applied) if a.original for v in a.outputs}
        self.kept = [given[v] for v in saturation.window.kept]
        self.again = [makers[v] for i, v in enumerate(saturation.window.kept) if self.kept[i] in self.kept[:i]]
        self.makers = {given[v]: k for k, a in enumerate(applied) if a.original for v in a.outputs}
        own = [k for k, a in enumerate(applied) if a.original]
        self.before: Cost = sum(self.costs[k] for k in own), len(own)
        self.choice, self.after = self._search()
        self.wanted = self._wanted()

    def _reads(self, k: int) -> list[Any]:
        """Classes of the operands of an application."""
        s, node = self.saturation, self.saturation.applied[k].node
        numbers = s.numbers_of[k]
        return [self.classes.at[self.classes.given[numbers[o.value]], s._layout(o.layout)] for o in node.reads()]

    def _own_places(self) -> None:
        """Operands that can be read from several places are read where the window reads them."""
        for w in self.saturation.rewrites:
            for (v, n), _ in w.moved:
                place = self.classes.given[v], n
                o = self.classes.at.get(place)
                if o is not None:
                    self.start[o] = v, n

    # ---- costs ----

    def cost(self, choice: Choice) -> Cost:
        """What a choice costs, and how many applications it has."""
        used = self.used(choice)
        if used is None:
            return INFINITE, 0
        total: float = sum(self.costs[k] for k in used)
        return (total, len(used)) if self._worthwhile(used) else (INFINITE, 0)

    def used(self, choice: Choice) -> dict[int, None] | None:
        """The applications of a choice; None if some would need themselves."""
        state: dict[int, int] = {}
        done: dict[int, None] = {}
        stack = [k for k in self._roots(choice) if k is not None]
        while stack:
            k = stack[-1]
            now = state.get(k, 0)
            if now == 2:
                stack.pop()
            elif now == 1:
                state[k] = 2
                done[k] = None
                stack.pop()
            else:
                state[k] = 1
                for o in self.reads[k]:
                    maker = self._maker(choice, o)
                    if maker is None or state.get(maker) == 2:
                        continue
                    if state.get(maker) == 1:
                        return None
                    stack.append(maker)
        return done

    def _roots(self, choice: Choice) -> list[int | None]:
        first = [self.makers.get(v) if choice[v] is None else choice[v] for v in dict.fromkeys(self.kept)]
        return [*first, *self.again, *(self._maker(choice, o) for o in self.needed)]

    def _maker(self, choice: Choice, operand: Any) -> int | None:
        found: int | None = choice[self.classes.given[choice[operand][0]]]
        return found

    def _worthwhile(self, used: dict[int, None]) -> bool:
        """Whether no kernel of its own computes again what is needed besides: it would save bytes, and cost operations."""
        for k in used:
            origins = self.origins.get(k)
            if origins and not self.saturation.applied[k].original and not any(self._replaces(w, used) for w in origins):
                return False
        return True

    def _replaces(self, w: Rewrite, used: dict[int, None]) -> bool:
        if w.pure:
            return True
        ground = self.grounds.get(id(w))
        if ground is None:
            ground = self.grounds[id(w)] = self._ground(w)
        return ground.isdisjoint(used)

    def _ground(self, w: Rewrite) -> set[int]:
        """The applications that a rewrite and those before it take the place of: none of what its result is made of."""
        shared = {self.classes.given[self.start[o][0]] for k in w.added for o in self.reads[k]}
        made = {v for k in w.added for v in self.saturation.applied[k].outputs}
        shared.update(self.classes.given[v] for v in w.new if v not in made)
        found: set[int] = set()
        todo = [k for k in w.left if k not in w.added]
        seen: set[int] = set()
        while todo:
            k = todo.pop()
            if k in seen or not shared.isdisjoint(self.outputs[k]):
                continue
            seen.add(k)
            found.add(k)
            if not self.saturation.applied[k].original:
                todo.extend(self.origins[k][0].left)
        return found

    # ---- the search ----

    def _search(self) -> tuple[Choice, Cost]:
        changes = self._changes()
        best = self._improve(dict(self.start), self.cost(self.start), changes)
        everything = dict(self.start)
        for change in changes:
            everything.update(change)
        cost = self.cost(everything)
        if cost[0] < INFINITE:
            other = self._improve(everything, cost, changes)
            best = min(best, other, key=lambda found: found[1])
        return best

    def _improve(self, choice: Choice, cost: Cost, changes: list[Choice]) -> tuple[Choice, Cost]:
        for _ in range(SWEEPS):
            before = cost
            for change in changes:
                back = {c: self.start[c] for c in change}
                for step in (change, back):
                    if all(choice[c] == v for c, v in step.items()):
                        continue
                    found = self.cost({**choice, **step})
                    if found < cost:
                        choice, cost = {**choice, **step}, found
                if monotonic() > self.saturation.deadline:
                    return choice, cost
            if cost == before:
                break
        return choice, cost

    def _changes(self) -> list[Choice]:
        """What each rewrite changes: who makes its results, or where they are read."""
        given, out = self.classes.given, []
        for w in self.saturation.rewrites:
            change: Choice = {}
            maker = {v: k for k in w.added for v in self.saturation.applied[k].outputs}
            for old, new in zip(w.old, w.new, strict=True):
                if new in maker:
                    change[given[old]] = maker[new]
                elif given[old] == given[new]:
                    change[given[new]] = None if given[new] in self.there else self._other(w, given[new])
            for (v, n), place in w.moved:
                change[self.classes.at[given[v], n]] = place
            if change and change not in out:
                out.append(change)
        return out

    def _other(self, w: Rewrite, value: Any) -> int:
        """An application that makes a value, other than those of a rewrite's left side that read it."""
        found: int = self.start[value]
        readers = {k for k in w.left if any(self.classes.given[self.start[o][0]] == value for o in self.reads[k])}
        makers = [k for k, classes in self.outputs.items() if value in classes and k not in readers]
        return makers[0] if makers else found

    # ---- the way there ----

    def _wanted(self) -> list[Rewrite]:
        if self.after >= self.before:
            return []
        used = self.used(self.choice) or {}
        wanted: dict[int, Rewrite] = {}
        places: set[At] = {self.choice[o] for o in (*self.needed, *(o for k in used for o in self.reads[k]))}
        read = {*self.kept, *(self.classes.given[v] for v, _ in places)}
        todo: list[Rewrite] = [w for k in used if not self.saturation.applied[k].original for w in self._origin(k, used)]
        todo += [w for w in self.saturation.rewrites if self._forwards(w, used, places, read)]
        while todo:
            w = todo.pop()
            if wanted.setdefault(id(w), w) is w:
                for k in w.left:
                    if not self.saturation.applied[k].original:
                        todo += [o for o in self._origin(k, used) if id(o) not in wanted]
        return [w for w in self.saturation.rewrites if id(w) in wanted]

    def _origin(self, k: int, used: dict[int, None]) -> Iterable[Rewrite]:
        """The rewrite to have an application by: one whose left side is not needed any more, if there is one."""
        found = self.origins[k]
        return [next((w for w in found if self._replaces(w, used)), found[0])]

    def _forwards(self, w: Rewrite, used: dict[int, None], places: set[At], read: set[Any]) -> bool:
        """Whether the choice has no need of a left side, because its result was there already."""
        if any(new in places and old not in places for old, new in w.moved):
            return True
        made = {v for k in w.added if not self.saturation.applied[k].original for v in self.saturation.applied[k].outputs}
        if read.isdisjoint(self.classes.given[v] for v in w.old):
            return False
        return any(n not in made for n in w.new) and not w.moved and w.left[w.rule.root] not in used
