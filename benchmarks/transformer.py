"""A transformer under compile: dispatches, bytes, planned memory, time to the first result and time a step. And a small MLP's step.

Width 384, 6 heads, 256 positions, a batch of 1, float32, causal; training is forward, mean squared error, backward and AdamW
in one compiled function. Run: python benchmarks/transformer.py [--layers N] [--backend dawn] [--json FILE]. Where there is
CUDA, PyTorch runs the same model beside it: eager, under torch.compile, and as a CUDA graph.

The floor is what this device's own rates allow: floating point operations of the products at the rate of a large product,
bytes of all other dispatches at the rate of a large copy, and the time of dispatches and of the submissions that carry them,
from bare loops (bare.py) over 10 and 300 small ones, each waiting for the last; all measured in this run. Calls that share a
submission count their part of it. No overlap is assumed.
"ms" is by the clock, with many calls in flight; "GPU ms" the sum of their passes by timestamps. Hosts are slower for seconds at a
time: what is short is measured again at the end, in a dozen visits of short rounds, and so are the rates; the best counts, of the
floor's parts too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import meganeura as mg
from meganeura import bench, nn, optim, spans
from meganeura.ops.archetype import Matmul

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import bare, beside

F = nn.functional
WIDTH, HEADS, LENGTH = 384, 6, 256


class Attention(nn.Module):
    """Self-attention of [batch, sequence, width] with a causal mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        batch, length, width = x.shape
        q, k, v = (f(x).reshape(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mask = mg.ones(length, length, dtype="bool").tril()
        weights = F.softmax(mg.where(mask, scores, float("-inf")), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward network, each after a layer norm and around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: mg.Tensor) -> mg.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def case(layers: int, training: bool) -> tuple[Callable[..., Any], Any, Any]:
    """A forward pass or a training step of some blocks as plain code, and its arguments."""
    mg.manual_seed(0)
    model = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(layers)))
    opt = optim.AdamW(model.parameters(), lr=1e-4)
    x = mg.tensor(np.random.default_rng(0).standard_normal((1, LENGTH, WIDTH)).astype(np.float32))

    def forward(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
        with mg.no_grad():
            return model(x)  # type: ignore[no-any-return]

    def step(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return (step if training else forward), x, x * 0.5


def mlp_case() -> tuple[Callable[..., Any], Any, Any]:
    """A training step of 784-128-10, batch 128, cross-entropy and SGD, and its arguments."""
    mg.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    opt = optim.SGD(model.parameters(), lr=0.01)

    def step(x: mg.Tensor, y: mg.Tensor) -> mg.Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    return step, mg.randn(128, 784), mg.randint(0, 10, (128,))


# ---- the first result ----


class Stages:
    """Listens to spans: seconds of processor time by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def span(self, name: str, detail: str) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] += time.process_time() - begin

    def named(self, uid: int, name: str) -> None:
        """Names of values: nothing to do."""


def first_result(layers: int, training: bool, rewrite: str) -> dict[str, float]:
    """Seconds of the first call of a compiled function in this process, from everything imported and the device open:
    processor time of each stage, and all of it by the clock."""
    fn, x, y = case(layers, training)
    mg.synchronize()
    stages = Stages()
    spans.listener = stages
    begin = time.perf_counter()
    try:
        mg.compile(fn, rewrite=rewrite)(x, y).detach().numpy()
    finally:
        spans.listener = None
    return {**stages.seconds, "first result": time.perf_counter() - begin}


def first_results(layers: int, training: bool, rewrite: str, backend: str | None) -> list[dict[str, float]]:
    """The same in three processes one after the other: the first with empty caches, the second without the plan cache, the
    third with what the first left there."""
    with tempfile.TemporaryDirectory() as folder:
        plans = str(Path(folder) / "plans")
        env = {**os.environ, "MESA_SHADER_CACHE_DIR": folder, "__GL_SHADER_DISK_CACHE_PATH": folder}
        command = [sys.executable, __file__, "--layers", str(layers), "--first", f"{int(training)}{rewrite}"]
        command += ["--backend", backend] if backend else []
        runs = [
            subprocess.run(command, env=env | {"MEGANEURA_PLAN_CACHE": where}, capture_output=True, text=True, check=True)
            for where in (plans, "off", plans)
        ]
    return [json.loads(r.stdout.splitlines()[-1]) for r in runs]


# ---- the floor ----


FEW, MANY = 10, 300  # dispatches of the chains that tell a dispatch's time from a submission's
COPIED = {"gpu": 64 << 20, "cpu": 4 << 20}  # elements of the large copy


@functools.cache
def chain(length: int) -> Any:
    """A list of so many small dispatches, each waiting for the last."""
    compiled, x = bare.chain(length)
    return compiled.session(x).frozen


@functools.cache
def probes() -> dict[str, Callable[[], Any]]:
    """What the rates are worked out from: a large copy, a product of 1024, and two chains."""
    a, b = mg.randn(COPIED["gpu" if bench.is_gpu() else "cpu"]), mg.randn(1024, 1024)
    return {"copy": a.clone, "product": lambda: b @ b, "few": bare.bare_loop(chain(FEW)), "many": bare.bare_loop(chain(MANY))}


def times(best: dict[str, float], seconds: float = bench.ROUND_SECONDS) -> dict[str, float]:
    """Milliseconds of the probes, in rounds of so many seconds; the best of now and before."""
    return {name: min(bench.milliseconds(f, mg.synchronize, seconds), best.get(name, float("inf"))) for name, f in probes().items()}


def rates(ms: dict[str, float]) -> dict[str, float]:
    """Bytes a second of a large copy, operations a second of a product of 1024, seconds of a small dispatch and of a submission."""
    one, several = len(chain(FEW).chunks), len(chain(MANY).chunks)  # submissions
    carried = MANY - FEW * several / one  # dispatches more in as many submissions; none if every dispatch is a submission of its own
    dispatch = max(0.0, (ms["many"] - ms["few"] * several / one) / carried) if carried else ms["many"] / MANY
    submission = max(0.0, ms["few"] - FEW * dispatch) / one
    nbytes = 8e3 * COPIED["gpu" if bench.is_gpu() else "cpu"]
    return {
        "bytes": nbytes / ms["copy"],
        "flops": 2e3 * 1024**3 / ms["product"],
        "dispatch": dispatch / 1e3,
        "submission": submission / 1e3,
    }


def flops(graph: Any) -> int:
    """Floating point operations of a graph's products."""
    total = 0
    for node in graph.nodes:
        if isinstance(node.op.archetype, Matmul):
            first = next(node.reads()).layout
            total += 2 * node.outputs[0].layout.numel * first.shape[-1]
    return total


def other_bytes(graph: Any) -> int:
    """Bytes read and written by everything but products."""
    rest = (n for n in graph.nodes if not isinstance(n.op.archetype, Matmul))
    return sum(o.layout.numel * o.layout.dtype.itemsize for n in rest for o in dict.fromkeys((*n.reads(), *n.outputs)))


def submissions(call: Callable[[], Any], calls: int = 40) -> float:
    """Submissions a call, of many one after the other: short ones share them on GPUs."""
    counters = mg.device().counters
    mg.synchronize()
    before = counters.submits
    for _ in range(calls):
        call()
    mg.synchronize()
    return (counters.submits - before) / calls


def floor_ms(operations: int, session: Any, carried: float, speed: dict[str, float]) -> float:
    """Milliseconds that a call of a session takes at the device's rates. carried: its submissions."""
    dispatches = len(session.frozen.steps)
    counted = dispatches * speed["dispatch"] + carried * speed["submission"]
    return 1e3 * (operations / speed["flops"] + other_bytes(session.graph) / speed["bytes"] + counted)


# ---- rows ----


def name_of(layers: int, training: bool) -> str:
    return f"{'training' if training else 'forward'}, {layers} layers"


@dataclass
class Row:
    """A line of the table. `call` and `wait`: what its "ms" is the time of; `floor`: its floor in ms at the device's rates."""

    values: dict[str, Any]
    call: Callable[[], Any]
    wait: Callable[[], Any] = mg.synchronize
    floor: Callable[[dict[str, float]], float] | None = None

    def visit(self, seconds: float = bench.ROUND_SECONDS) -> None:
        """Time it in rounds of so many seconds; the best of all visits counts."""
        self.values["ms"] = min(bench.milliseconds(self.call, self.wait, seconds), self.values.get("ms", float("inf")))

    def settle(self, speed: dict[str, float]) -> None:
        """Set it beside its floor."""
        if self.floor is not None:
            floor = self.floor(speed)
            self.values |= {"floor ms": floor, "ms / floor": self.values["ms"] / floor}


def measured(name: str, made: tuple[Callable[..., Any], Any, Any], rewrite: str) -> Row:
    """Everything about one compiled function in this process."""
    fn, x, y = made
    compiled = mg.compile(fn, rewrite=rewrite)
    operations = flops(mg.compile(fn, rewrite="off").graph(x, y))
    compiled(x, y)
    session = compiled.session(x, y)
    plan, moved = session.plan, sum(s["bytes"] for s in session.export()["steps"])
    row = Row({"case": f"{name}, {rewrite}", "dispatches": len(session.frozen.steps), "MB moved": moved / 1e6}, lambda: compiled(x, y))
    row.values |= {"MB planned": plan.peak / 1e6, "MB without reuse": (plan.demanded + plan.outputs) / 1e6, "MB alive": plan.bound / 1e6}
    row.visit()
    carried = submissions(row.call, 40 if row.values["ms"] < 50 else 4)
    row.floor = lambda speed: floor_ms(operations, session, carried, speed)
    row.values["GPU ms"] = bench.gpu_milliseconds(row.call)
    return row


def cold(layers: int, training: bool, rewrite: str, backend: str | None) -> dict[str, float]:
    """Seconds until the first result, and what they are made of."""
    first, second, third = first_results(layers, training, rewrite, backend)
    row = {f"{name} s": second.get(name, 0.0) for name in ("trace", "rewrite", "plan", "pipelines")}
    row |= {"cold pipelines s": first.get("pipelines", 0.0), "first result s": second["first result"]}
    row["cold first result s"] = first["first result"]
    return row | {f"{name} s, plan cached": third[name] for name in ("rewrite", "plan", "first result")}


def eager(name: str, made: tuple[Callable[..., Any], Any, Any]) -> Row:
    """Time of the same code without compile."""
    fn, x, y = made
    before = mg.device().counters.dispatches
    fn(x, y)
    row = Row({"case": f"{name}, eager", "dispatches": mg.device().counters.dispatches - before}, lambda: fn(x, y))
    row.visit()
    return row


# ---- PyTorch ----


def torch_model(torch: Any, layers: int) -> Any:
    """The same model for PyTorch, its attention written out likewise."""
    tn = torch.nn

    class TorchBlock(tn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = tn.LayerNorm(WIDTH), tn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.out = (tn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = tn.Linear(WIDTH, 4 * WIDTH), tn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            h = self.norm1(x)
            q, k, v = (f(h).reshape(1, LENGTH, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            h = tn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(1, LENGTH, WIDTH))
            return x + self.down(tn.functional.gelu(self.up(self.norm2(x))))

    return tn.Sequential(*(TorchBlock() for _ in range(layers))).cuda()


def torch_call(torch: Any, layers: int, training: bool, kind: str | None) -> Callable[[], Any]:
    """A forward pass or training step of a model of its own, under torch.compile in a mode or (None) not."""
    model = torch_model(torch, layers)
    f = torch.compile(model, mode=kind) if kind else model
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    x = torch.randn(1, LENGTH, WIDTH, device="cuda")
    y = x * 0.5

    def forward() -> Any:
        with torch.no_grad():
            return f(x)

    def step() -> Any:
        opt.zero_grad(set_to_none=True)
        loss = ((f(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return step if training else forward


def torch_mlp_call(torch: Any, kind: str | None) -> Callable[[], Any]:
    """The small MLP's training step in a model of its own, under torch.compile in a mode or (None) not."""
    tn = torch.nn
    model = tn.Sequential(tn.Linear(784, 128), tn.ReLU(), tn.Linear(128, 10)).cuda()
    f = torch.compile(model, mode=kind) if kind else model
    opt = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    x, y = torch.randn(128, 784, device="cuda"), torch.randint(0, 10, (128,), device="cuda")

    def step() -> Any:
        opt.zero_grad(set_to_none=True)
        loss = tn.functional.cross_entropy(f(x), y)
        loss.backward()
        opt.step()
        return loss

    return step


def captured(torch: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    """The same as a CUDA graph's replay."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda _kept=call: graph.replay()  # the graph reads the memory of the call's tensors


def torch_rows(torch: Any, name: str, made: Callable[[str | None], Callable[[], Any]], compiler: bool) -> list[Row]:
    """PyTorch's milliseconds: eager, as a CUDA graph, and compiled. made: the call under a mode of torch.compile, or None."""
    kinds = {"torch": None, "torch in a CUDA graph": None}
    kinds |= {"torch.compile": "default", "torch.compile, reduce-overhead": "reduce-overhead"} if compiler else {}
    rows = []
    for kind, mode in kinds.items():
        call = made(mode)
        try:
            call = captured(torch, call) if "CUDA graph" in kind else call
            for _ in range(3):  # compiles and records: not the benchmark's to time
                call()
            row = Row({"case": f"{name}, {kind}"}, call, torch.cuda.synchronize)
            row.visit()
        except Exception as error:  # torch.compile needs a C compiler and Triton, which may be missing
            row = Row({"case": f"{name}, {kind}: {type(error).__name__}"}, call)
        rows.append(row)
    return rows


SHORT, VISITS, MOMENT = 0.5, 12, 0.02  # milliseconds up to which a row is measured again, how often, and seconds of a round then


def revisit(rows: Sequence[Row], best: dict[str, float]) -> dict[str, float]:
    """Measure what is short again, and the probes, if there were any; set all rows beside their floors. Returns the rates."""
    for _ in range(VISITS):
        best = best and times(best, MOMENT)
        for row in rows:
            if row.values.get("ms", SHORT) < SHORT:
                row.visit(MOMENT)
    speed = best and rates(best)
    for row in rows:
        row.settle(speed)
    return speed


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--warm", action="store_true", help="leave out what starts processes or compilers: first results, torch.compile")
    parser.add_argument("--deep", action="store_true", help="leave out the single block")
    parser.add_argument("--torch", action="store_true", help="PyTorch's rows alone, torch.compile among them")
    parser.add_argument("--first", default="", help=argparse.SUPPRESS)


def main() -> None:
    args = beside.start(__doc__ or "", _options)
    if args.first:
        print(json.dumps(first_result(args.layers, args.first[0] == "1", args.first[1:])))
        return
    bench.warm()
    ours = not args.torch
    best = times({}) if ours else {}
    torch = beside.cuda()
    rows: list[Row] = []

    def note(*made: Row) -> None:
        rows.extend(made)
        for row in made:
            print(f"{row.values['case']}: {row.values.get('ms', float('nan')):.4g} ms", file=sys.stderr, flush=True)

    if ours and not args.deep:
        note(*(measured("MLP step", mlp_case(), mode) for mode in ("greedy", "off")), eager("MLP step", mlp_case()))
    if torch and not args.deep:
        note(*torch_rows(torch, "MLP step", functools.partial(torch_mlp_call, torch), not args.warm))
    for layers in (args.layers,) if args.deep else dict.fromkeys((1, args.layers)):
        for training in (False, True):
            name = name_of(layers, training)
            for mode in ("greedy", "off") if ours else ():
                extra = cold(layers, training, mode, args.backend) if mode == "greedy" and not args.warm else {}
                row = measured(name, case(layers, training), mode)
                row.values |= extra
                note(row)
            if ours:
                note(eager(name, case(layers, training)))
            if torch:
                note(*torch_rows(torch, name, functools.partial(torch_call, torch, layers, training), not args.warm))
    speed = revisit(rows, best)
    if ours:
        copy, product, small = speed["bytes"] / 1e9, speed["flops"] / 1e9, speed["dispatch"] * 1e6
        carrier = speed["submission"] * 1e6
        print(f"copy {copy:.1f} GB/s, product {product:.1f} GFLOP/s, dispatch {small:.2f} us, submission {carrier:.1f} us\n")
    beside.finish([row.values for row in rows], args)


if __name__ == "__main__":
    main()
