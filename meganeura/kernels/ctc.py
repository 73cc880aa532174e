"""Connectionist temporal classification (Kernel 'ctc'): one launch a step over sequences and states, forwards and backwards.

In: a Call of ops.ctc. Out: launches whose pipelines do not depend on the number of steps; which step it is stands in the
parameters. The gradient of a class is written by the first state with its label, which adds up the others: no atomics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtype import DType, float32
from ..storage import Layout, padded_bytes
from . import template as T
from .kernel import STATUS, TEMP, Call, Kernel, Launch, Lowered, Profile
from .move import contiguous

FIELDS = ("n", "states", "length", "classes", "labels", "blank", "step", "zero")
Buffer = tuple[str, int, DType, bool]  # name, binding number, dtype, written

_LABEL = """fn label_of(n: u32, s: u32) -> i32 { if ((s & 1u) == 0u) { return i32(p.blank); } return targets[n * p.labels + s / 2u]; }
fn count_of(n: u32) -> u32 { return 2u * min(u32(target_lengths[n]), p.labels) + 1u; }
fn steps_of(n: u32) -> u32 { return min(u32(input_lengths[n]), p.length); }
fn class_of(label: i32) -> u32 { return min(u32(label), p.classes - 1u); }
fn low() -> f32 { return bitcast<f32>(0xff800000u | (p.n & 0u)); }
fn is_low(x: f32) -> bool { return bitcast<u32>(x) == 0xff800000u || x < -1e29; }
fn merged(a: f32, b: f32, c: f32) -> f32 {
  let top = max(max(a, b), c);
  if (is_low(top)) { return low(); }
  return top + log_(exp(a - top) + exp(b - top) + exp(c - top));
}
"""

_CHECK = """  if (s == 0u && (u32(input_lengths[n]) > p.length)) { status_report(input_lengths[n], i32(p.length) + 1i); }
  if (s == 0u && (u32(target_lengths[n]) > p.labels)) { status_report(target_lengths[n], i32(p.labels) + 1i); }
  if (s < count && u32(label) >= p.classes) { status_report(label, i32(p.classes)); }
"""

_BODY = {
    "first": _CHECK
    + """  var a = low();
  if (s < min(count, 2u) && steps > 0u) { a = {lp}; }
  alpha[at] = a;
""",
    "alpha": """  var a = low();
  if (s < count && p.step < steps) {
    let past = at - p.n * p.states;
    var one = low(); var two = low();
    if (s > 0u) { one = alpha[past - 1u]; }
    if (s > 1u && label != i32(p.blank) && label != label_of(n, s - 2u)) { two = alpha[past - 2u]; }
    a = merged(alpha[past], one, two);
    if (!is_low(a)) { a = a + {lp}; }
  }
  alpha[at] = a;
""",
    "finish": """  if (s > 0u) { return; }
  var loss = 0.0;
  if (steps == 0u) {
    if (count > 1u) { loss = -low(); }
  } else {
    let end = ((steps - 1u) * p.n + n) * p.states + count - 1u;
    var one = low();
    if (count > 1u) { one = alpha[end - 1u]; }
    loss = -merged(alpha[end], one, low());
  }
  nll[n] = loss;
""",
    "beta": """  var b = low();
  let here = ((p.step & 1u) * p.n + n) * p.states + s;
  if (s < count && p.step < steps) {
    if (p.step == steps - 1u) {
      if (s + 2u >= count) { b = 0.0; }
    } else {
      let past = (((p.step + 1u) & 1u) * p.n + n) * p.states + s;
      var one = low(); var two = low();
      if (s + 1u < count) { one = beta[past + 1u]; }
      if (s + 2u < count && label != i32(p.blank) && label != label_of(n, s + 2u)) { two = beta[past + 2u]; }
      b = merged(beta[past], one, two);
    }
    shares[at] = exp({alpha} + b + {nll});
    if (!is_low(b)) { b = b + {lp}; }
  } else {
    shares[at] = 0.0;
  }
  beta[here] = b;
""",
    "collect": """  if (s >= count || p.step >= steps || (p.zero != 0u && bitcast<u32>({nll}) == 0x7f800000u)) { return; }
  for (var j = s & 1u; j < s; j += 2u) { if (label_of(n, j) == label) { return; } }
  var sum = 0.0;
  for (var j = s; j < count; j += 2u) { if (label_of(n, j) == label) { sum += shares[at - s + j]; } }
  let place = (p.step * p.n + n) * p.classes + class_of(label);
  result[place] = {store};
""",
}


@dataclass(frozen=True, slots=True)
class CtcForm:
    """Everything the source depends on: the pipeline key."""

    what: str
    buffers: tuple[tuple[str, DType, bool], ...]


def _source(form: CtcForm, profile: Profile) -> str:
    types = {name: dtype for name, dtype, _ in form.buffers}
    report = form.what == "first"

    zero = T.store("f32", "0.0", types.get("result", float32))
    share = T.store("f32", "-sum * grad_n", types.get("result", float32))

    def read(name: str, at: str) -> str:
        return T.load(types[name], f"{name}[{at}]") if name in types else "0.0"

    if form.what == "fill":
        body = f"  let id = (w.y * {T.FOLD}u + w.x) * 64u + local;\n  if (id < p.length * p.n * p.classes) {{ result[id] = {zero}; }}\n"
        functions = ""
    else:
        lp = read("log_probs", "(p.step * p.n + n) * p.classes + class_of(label)")
        start = "(p.step + w.z)" if form.what == "collect" else "p.step"
        share = share.replace("grad_n", read("grad", "n"))
        text = _BODY[form.what].replace("{lp}", lp).replace("{store}", share)
        text = text.replace("{alpha}", read("alpha", "at")).replace("{nll}", read("nll", "n")).replace("p.step", start)
        body = "  let s = w.x * 64u + local;\n  let n = w.y;\n  if (s >= p.states) { return; }\n"
        body += "  let label = label_of(n, s);\n  let count = count_of(n);\n  let steps = steps_of(n);\n"
        body += f"  let at = ({start} * p.n + n) * p.states + s;\n{text}"
        functions = _LABEL
    lanes = T.lanes(profile)
    args = (
        "@builtin(subgroup_id) sid: u32, @builtin(subgroup_invocation_id) lane: u32"
        if lanes
        else "@builtin(local_invocation_index) local: u32"
    )
    main = f"@compute @workgroup_size(64) fn main(@builtin(workgroup_id) w: vec3<u32>, {args}) {{\n"
    main += (f"  let local = sid * {lanes}u + lane;\n" if lanes else "") + body + "}\n"
    count = len(form.buffers)
    out = T.header(profile, types.values(), lanes > 0)
    for i, (name, dtype, written) in enumerate(form.buffers):
        out += T.storage(i, name, T.element(dtype), "read_write" if written else "read")
    out += T.uniform(count + report, FIELDS)
    if report:
        out += T.scalar_block((), True) + T.status(count)
    return out + T.prelude(functions + main) + functions + main


class _Plan:
    """The launches of one call as they are put together."""

    def __init__(self, call: Call, profile: Profile) -> None:
        self.call, self.profile = call, profile
        self.launches: list[Launch] = []
        self.temps: list[int] = []
        x, targets = self.layout("log_probs"), self.layout("targets")
        self.length, self.n, self.classes = x.shape
        self.labels = targets.shape[1]
        self.states = 2 * self.labels + 1
        self.zero = int(bool(call.attrs["zero_infinity"]))

    def layout(self, name: str) -> Layout:
        found = self.call.inputs[self.call.names.index(name)]
        assert found is not None
        return found

    def dense(self, name: str) -> Buffer:
        """An input, copied first if it does not lie row by row from the start of its storage."""
        number, layout = self.call.names.index(name), self.layout(name)
        if layout.contiguous and layout.offset == 0:
            return name, number, layout.dtype, False
        launch, size = contiguous(layout, number, len(self.temps), self.profile)
        self.launches.append(launch)
        self.temps.append(size)
        return name, TEMP(len(self.temps) - 1), layout.dtype, False

    def result(self, i: int, name: str) -> Buffer:
        return name, len(self.call.inputs) + i, self.call.outputs[i].dtype, True

    def temporary(self, elements: int, name: str) -> Buffer:
        self.temps.append(padded_bytes(elements, float32))
        return name, TEMP(len(self.temps) - 1), float32, True

    def launch(self, what: str, buffers: list[Buffer], step: int = 0, deep: int = 1) -> None:
        """Add a launch over sequences and states, of `deep` steps at once."""
        form = CtcForm(what, tuple((b[0], b[2], b[3]) for b in buffers))
        report = what == "first"
        access = tuple("read_write" if b[3] else "read" for b in buffers) + (("read_write",) if report else ())
        T.check_bindings(len(access), self.profile, "ctc_loss")
        kernel = Kernel(("ctc", form), lambda profile: _source(form, profile), access, f"ctc {what}", scalars=report)
        words = [self.n, self.states, self.length, self.classes, self.labels, self.call.attrs["blank"], step, self.zero]
        numbers = tuple(b[1] for b in buffers) + ((STATUS,) if report else ())
        grid = (-(-self.states // 64), self.n, deep)
        if what == "fill":
            grid = T.grid(-(-self.length * self.n * self.classes // 64))
        self.launches.append(Launch(kernel, numbers, grid, T.pack(words), T.scalar_entries(self.call, (), True) if report else ()))

    def lowered(self) -> Lowered:
        return Lowered(tuple(self.launches), tuple(self.temps))


def _reading(buffer: Buffer) -> Buffer:
    return (*buffer[:3], False)


def lower(call: Call, profile: Profile) -> Lowered:
    """Launches of the loss, or of its gradient."""
    plan = _Plan(call, profile)
    if call.outputs[0].numel == 0:
        return Lowered(())
    x, common = plan.dense("log_probs"), [plan.dense(name) for name in ("targets", "input_lengths", "target_lengths")]
    if "grad" not in call.names:
        alpha, nll = plan.result(1, "alpha"), plan.result(0, "nll")
        for t in range(plan.length):
            plan.launch("alpha" if t else "first", [x, alpha, *common], t)
        plan.launch("finish", [_reading(alpha), nll, *common])
        return plan.lowered()
    given: list[Any] = [plan.dense(name) for name in ("grad", "nll", "alpha")]
    grad, nll, alpha = given
    result = plan.result(0, "result")
    beta, shares = plan.temporary(2 * plan.n * plan.states, "beta"), plan.temporary(plan.length * plan.n * plan.states, "shares")
    for t in reversed(range(plan.length)):
        plan.launch("beta", [x, alpha, beta, shares, nll, *common], t)
    plan.launch("fill", [result])
    for t in range(0, plan.length, 65535):
        plan.launch("collect", [_reading(shares), grad, nll, *common, result], t, min(plan.length - t, 65535))
    return plan.lowered()
