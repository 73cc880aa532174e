"""Breaks each mechanism on purpose and reports whether its tests notice: `python -m tests.points.broken [--quick] [point ...]`.

A breakage is an exact piece of the package's source, what replaces it, and the tests that must then all fail. It is made
in a copy of the package and the tests; the shader cache is shared. Exit status 1 if a breakage survives, or if its
source text is no longer there (then the table below needs the new text). --quick: only breakages whose tests need no device.
"""

# ruff: noqa: E501

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 150  # most time of one breakage; running longer counts as noticed, since something hangs


@dataclass(frozen=True)
class Breakage:
    """`edits`: (file below meganeura/, exact text, replacement). `tests`: ids below tests/; every one must fail."""

    point: int
    what: str
    edits: tuple[tuple[str, str, str], ...]
    tests: tuple[str, ...]


def _one(point: int, what: str, file: str, old: str, new: str, *tests: str) -> Breakage:
    mine = tuple(t if "/" in t or "::" not in t or t.startswith("test_auto") else f"points/test_point_{point:02}.py{t}" for t in tests)
    return Breakage(point, what, ((file, old, new),), mine)


BREAKAGES = (
    _one(1, "overlapping operands are not copied first", "autodiff.py", "return a <= d and c <= b", "return False",
         "::test_overlapping_reads_and_writes_copy_first[shifted up-float32]", "::test_overlapping_reads_and_writes_copy_first[transposed-float32]"),
    _one(1, "aliases are not told to kernels", "eager/interpreter.py", "if out is None and not op.mutates:\n            return ()", "if True:\n            return ()",
         "::test_a_dispatch_binds_a_written_storage_once[in place]"),
    _one(1, "identities are addresses", "storage.py", "self.uid = next(_uids)", "self.uid = id(self)", "::test_identities_never_repeat"),
    _one(1, "storages are not padded", "storage.py", "return max(16, -(-elements * dtype.itemsize // 16) * 16)", "return max(4, elements * dtype.itemsize)",
         "::test_storages_are_padded_to_16_bytes[float32]", "::test_storages_are_padded_to_16_bytes[float16]"),
    _one(1, "every offset counts as aligned", "kernels/pointwise.py",
         "aligned = self.layouts[k].offset % 4 == 0 and all(st % 4 == 0 for st in strides[:-1])\n        return", "aligned = True\n        return",
         "::test_odd_columns_leave_their_neighbours_alone[float16]", "::test_odd_columns_leave_their_neighbours_alone[bool]"),
    _one(1, "the last vector is written whole", "kernels/pointwise.py", "    if full or not form.tail:\n", "    if True:\n",
         "::test_odd_stores_leave_their_neighbours_alone[float16]", "::test_odd_stores_leave_their_neighbours_alone[bool]"),
    _one(1, "bindings are not clipped to the limit", "gpu/recorder.py", "b.size if b.size <= limit else limit", "b.size",
         "::test_small_views_of_a_storage_larger_than_a_binding"),
    _one(2, "finish takes the form that only logs", "gpu/native.py", "self.safe.wgpuCommandEncoderFinish(", "self.lib.wgpuCommandEncoderFinish(",
         "::test_a_bad_dispatch_of_an_eager_op_is_an_error", "::test_finish_create_and_submit_take_the_raising_form"),
    _one(2, "aliasing is not checked", "gpu/recorder.py", "if any(b is buffers[i] for j, b in enumerate(buffers) if j != i):", "if False:",
         "gpu/test_device.py::test_buffers_are_checked_when_bound"),
    _one(2, "buffers are destroyed before their last submit retired", "gpu/pool.py", "if b.epoch <= retired]", "if True]",
         "gpu/test_device.py::test_destroying_waits_for_the_last_submit"),
    _one(2, "what a replay uses is destroyed at once", "gpu/pool.py", "buffer.epoch = max(buffer.epoch, self.submitted)", "pass",
         "::test_buffers_of_a_replayed_list_wait_for_its_last_run"),
    _one(2, "adopted buffers are not looked at", "gpu/device.py", "for buffer in list(self.adopted):", "for buffer in []:",
         "::test_an_adopted_buffer_that_its_owner_destroyed_is_an_error"),
    _one(2, "a refused submit marks nothing", "gpu/recorder.py", "            if not device.lost:\n                self.runs = runs\n", "            if False:\n                self.runs = runs\n",
         "::test_a_submit_that_the_driver_refuses_marks_what_it_would_have_written"),
    _one(2, "what the courier could not finish is submitted", "gpu/outbox.py", "        elif errors:\n", "        elif False:\n",
         "gpu/test_outbox.py::test_what_the_driver_cannot_finish_is_found_and_the_rest_runs"),
    _one(2, "bind groups go with the submit before theirs", "gpu/outbox.py", "[*recorder.gone, *away.dead]", "[*recorder.gone, *recorder.dead]",
         "gpu/test_outbox.py::test_bind_groups_live_until_what_is_noted_was_submitted"),
    _one(2, "a failed compiled call keeps its outputs", "compile/session.py", "                    o.free.append(buffer)\n", "                    pass\n",
         "::test_a_compiled_call_that_fails_keeps_no_memory"),
    _one(2, "nothing waits for work at exit", "gpu/device.py", "atexit.register(_settle_at_exit)", "", "::test_what_fails_after_the_last_line_is_told_at_exit"),
    _one(2, "grids are not checked", "gpu/pipelines.py", "if not all(1 <= g <= most for g in launch.grid):", "if False:",
         "gpu/test_device.py::test_launches_are_checked_when_prepared[launch0-grid]"),
    _one(3, "a failure drops everything that was recorded", "gpu/recorder.py", "failure = self._sort_out(self.records, error)",
         'self.records, self.runs, failure = [], [], self.device.translate(error, "recording", None)',
         "::test_the_bad_op_alone_is_blamed_and_the_others_ran", "::test_the_user_line_is_named"),
    _one(3, "what was never written is not marked", "gpu/recorder.py", "        self._report(lost)\n\n    def _spread", "\n    def _spread",
         "::test_results_that_were_never_written_raise_when_read", "::test_a_call_of_several_dispatches_fails_as_one"),
    _one(3, "what reads a lost result runs", "gpu/recorder.py", " or next((lost[b] for b in buffers if b in lost), None)\n", "\n",
         "::test_what_reads_a_lost_result_does_not_run", "::test_a_lost_operand_that_is_written_in_place_stops_the_call_too"),
    _one(3, "what is written in place may be lost", "gpu/recorder.py", "        b.check()\n", "        if i not in step.writes:\n            b.check()\n",
         "::test_a_lost_operand_that_is_written_in_place_stops_the_call_too"),
    _one(3, "half a call stays noted", "gpu/recorder.py", "            del self.records[noted if self.epoch == epoch else 0 :]\n", "            pass\n",
         "::test_a_call_that_cannot_be_bound_leaves_no_half_of_itself"),
    _one(3, "temporaries of a call without memory are lost", "gpu/recorder.py", "                temps.append(device.alloc(n))", "                temps[len(temps) :] = [] if temps else [device.alloc(m) for m in prepared.temps]",
         "::test_temporaries_of_a_call_that_runs_out_of_memory_go_back"),
    _one(3, "reused memory is blamed", "gpu/recorder.py", "                lost.pop(buffer, None)\n", "",
         "::test_memory_that_was_handed_on_before_the_failure_was_found_is_not_blamed"),
    _one(4, "uploads do not look at recorded work", "gpu/transfer.py", "if buffer.epoch >= recorder.unsent:", "if False:",
         "::test_an_upload_into_a_storage_in_use_waits_for_what_was_recorded", "gpu/test_device.py::test_uploads_do_not_overtake"),
    Breakage(4, "uploads take any memory and do not look", (
        ("gpu/transfer.py", "if buffer.epoch >= recorder.unsent:", "if False:"),
        ("eager/interpreter.py", "self.device.alloc(padded_bytes(layout.numel, dtype), idle=True)", "self.device.alloc(padded_bytes(layout.numel, dtype))"),
    ), ("points/test_point_04.py::test_a_recycled_buffer_is_not_written_under_recorded_work", "points/test_point_04.py::test_many_uploads_between_recorded_ops")),
    _one(4, "uploads do not look at what is away", "gpu/transfer.py", "if buffer.epoch >= recorder.unsent:", "if buffer.epoch == recorder.epoch:",
         "gpu/test_outbox.py::test_nothing_overtakes_it[write]"),
    _one(4, "uploads take memory that is used by what is away", "gpu/device.py", "recorder.unsent, idle", "recorder.epoch, idle",
         "gpu/test_outbox.py::test_memory_that_it_uses_is_handed_out_to_no_upload"),
    _one(4, "a full ring of scalars starts again without a submit", "gpu/recorder.py", "and a call goes into one submit\n                self._flush()", "\n                self.slot = 0",
         "::test_parameter_slots_are_not_overtaken"),
    _one(5, "numbers are part of a plan's key", "eager/interpreter.py", "key.append(v.__class__)", "key.append(v)",
         "::test_a_number_that_varies_makes_nothing[operand]", "::test_a_number_that_varies_makes_nothing[clamp]"),
    _one(5, "numbers are part of a gradient rule's key", "eager/fuse.py", "return scalar_dtype(v) if isinstance(v, (int, float)) and not isinstance(v, bool) else v", "return v",
         "::test_a_number_that_varies_makes_nothing[gradient of softplus]"),
    _one(5, "a gradient rule's key does not tell True from False", "eager/fuse.py", " and not isinstance(v, bool) else v  #", " else v  #",
         "::test_truth_values_are_told_apart_in_gradients[power]", "::test_truth_values_are_told_apart_in_gradients[left operand of a division]"),
    _one(5, "uniforms are not shared", "gpu/pipelines.py", "found = self.uniforms.get(content)", "found = None",
         "gpu/test_device.py::test_uniforms_are_shared_and_bounded"),
    _one(6, "bfloat16 with float16 gives the left one", "dtype.py", "return float32  # float16 with", "return a  # float16 with", "::test_promotion_of_pairs[ranks0]"),
    _one(6, "int64 is not range-checked", "eager/interpreter.py", "        if dtype.bits >= 32:\n", "        if False:\n",
         "::test_int64_beyond_its_storage_is_refused_by_value[2147483648]", "::test_uint32_beyond_its_storage_is_refused[-1]"),
    _one(6, "argmax gives int32", "ops/infer.py", "out, compute = int64, x.dtype", "from ..dtype import int32\n\n        out, compute = int32, x.dtype",
         "::test_results_have_pytorchs_dtype[argmax]"),
    _one(6, "sums of integers keep their dtype", "ops/infer.py", "out = compute = x.dtype if x.dtype.is_floating_point else int64", "out = compute = x.dtype",
         "::test_results_have_pytorchs_dtype[sum of int32]"),
    _one(7, "the kernel does not check", "kernels/index.py", "let inside = u32(found) < p.limit;", "let inside = true;",
         "::test_a_bad_index_is_reported_with_op_value_and_line[index_select]", "::test_a_compiled_call_reports_at_every_run"),
    _one(7, "status words are read and forgotten", "gpu/transfer.py", "self.write(self.device.status.buffer, 0, bytes(16))\n            raise error",
         "self.write(self.device.status.buffer, 0, bytes(16))", "::test_a_bad_index_is_reported_with_op_value_and_line[gather]", "::test_the_first_of_several_is_reported"),
    _one(7, "status words are not cleared", "gpu/transfer.py", "self.write(self.device.status.buffer, 0, bytes(16))\n            raise error", "raise error",
         "::test_the_error_waits_for_a_sync_and_comes_once"),
    _one(7, "names die with their session", "gpu/replay.py", "status.noted[number] = status.kept.pop(number)  #", "status.kept.pop(number)  #",
         "::test_a_session_that_died_before_the_sync_still_names_op_and_line"),
    _one(7, "names of dispatches pile up", "gpu/transfer.py", "if len(self.noted) >= MAX_NOTED:", "if False:", "::test_names_of_dispatches_that_nobody_waits_for_do_not_pile_up"),
    _one(7, "the user's line is not kept", "gpu/transfer.py", "[self._last] = (op_name, site)", "[self._last] = (op_name, None)",
         "::test_a_bad_index_is_reported_with_op_value_and_line[indexing]"),
    _one(8, "in-place ops do not count versions", "dispatch.py", "        out._storage.version += 1\n", "",
         "test_autodiff.py::test_refused[saved input changed]", "::test_one_version_counter_a_storage"),
    _one(8, "views keep their old history", "autodiff.py", "if base is not None and t._seen != base._rewrites:", "if False:",
         "::test_an_old_view_has_the_history_of_the_new_base", "test_autodiff.py::test_same_as_torch[view made before the write]"),
    _one(8, "multi-output views may be changed", "autodiff.py", 'if tracked and out._view in ("multi", "no_grad"):', "if False:", "::test_outputs_of_several_views_refuse[unbind]"),
    _one(8, "a write through a view forgets the rest of its base", "autodiff.py", "        rest = grad.clone()\n", "        rest = grad * 0\n",
         "::test_changes_through_views_as_in_pytorch[a diagonal]"),
    _one(9, "a draw's range depends on its size", "random.py", "steps = max(1, -(-elements // (1 << 34)))", "steps = max(1, elements)", "::test_every_draw_takes_a_fixed_range"),
    _one(9, "vectors draw by lane, not by logical index", "kernels/pointwise.py", 'else f"{lane}u"}', 'else f"{3 - lane}u"}',
         "::test_the_device_draws_the_bits_of_the_host", "::test_bits_do_not_depend_on_shape_layout_or_kernel"),
    _one(9, "nine rounds", "random.py", "for _ in range(10):", "for _ in range(9):", "::test_philox_gives_the_known_answers[zeros]", "::test_the_device_draws_the_bits_of_the_host"),
    _one(9, "a session draws its numbers once", "compile/program.py", "return [v for fn, _ in self.forward_hosts for v in fn()]",
         'return self.__dict__.setdefault("_drawn", [v for fn, _ in self.forward_hosts for v in fn()])',
         "::test_compiled_draws_what_eager_draws_also_past_dead_draws[off]"),
    _one(10, "changes of requires_grad are not counted", "tensor.py", "self._leaf = requires_grad\n            state_epoch[0] += 1",
         "self._leaf = requires_grad", "::test_every_change_moves_the_epoch[requires_grad]"),
    _one(10, "changes of data are not counted", "tensor.py", "value._storage, value.layout\n        state_epoch[0] += 1",
         "value._storage, value.layout", "::test_every_change_moves_the_epoch[data]"),
    _one(10, "names are not compared", "compile/guard.py", "if self.names is not None and (reason := self.names.changed()):", "if False:",
         "compile/test_trace_guards.py::test_global_number", "compile/test_trace_guards.py::test_closure_cells"),
    _one(10, "optimizers are not compared", "compile/guard.py", "if owner._fingerprint() != fingerprint:", "if False:",
         "::test_groups_and_hyperparameters_are_guarded[momentum switched on]"),
    _one(10, "modules in use are not observed", "compile/trace.py", "if id(owner) not in self.observed:", "if False:",
         "::test_a_changed_module_is_seen[training]", "::test_a_changed_module_is_seen[an attribute]"),
    _one(10, "a trace keeps and guards its arguments", "compile/record.py", "stand_in.grad = grad_of(t)", "stand_in.grad = t.grad", "::test_arguments_are_not_kept"),
    _one(11, "records take no lock", "gpu/recorder.py", "        with self.lock:\n            device = self.device\n", "        if True:\n            device = self.device\n",
         "::test_a_record_takes_the_lock"),
    _one(11, "finalizers free at once", "eager/interpreter.py", "self._release = device.graveyard.append", "self._release = device.free",
         "::test_finalizers_take_no_lock_and_touch_nothing"),
    _one(11, "a forked child is not told", "gpu/device.py", "            device._forbid(_FORK)\n", "            pass\n",
         "::test_a_forked_child_gets_an_error_and_may_die_in_peace"),
    _one(11, "a forked child inherits a held lock", "gpu/device.py", "device.lock = threading.RLock()  #", "pass  #",
         "::test_a_child_forked_while_a_thread_holds_the_lock_is_told_too"),
    _one(11, "Ctrl-C before a submit drops what was recorded", "gpu/recorder.py", "                self.records, self.slot, self.runs = records, slot, runs\n", "                pass\n",
         "::test_ctrl_c_at_any_call_of_a_submit_neither_loses_nor_repeats_work"),
    _one(11, "Ctrl-C tears a replay", "gpu/replay.py", "                interrupt, first = error, []", "                raise",
         "::test_ctrl_c_at_any_call_of_a_submit_neither_loses_nor_repeats_work"),
    _one(11, "Ctrl-C tears a rebinding", "compile/session.py", "frozen, self.frozen = self.frozen, None", "frozen = self.frozen",
         "::test_ctrl_c_in_a_rebinding_leaves_no_half_bound_session"),
    _one(11, "Ctrl-C loses what was handed over", "gpu/outbox.py", "                away.lost = True  #", "                pass  #",
         "gpu/test_courier.py::test_ctrl_c_at_any_call_neither_loses_nor_repeats_work"),
    _one(11, "the courier runs bytecode", "gpu/courier.py", "        any(map(results.put, starmap(native.slow_call, filterfalse(begun.put, iter(orders.get, None)))))",
         "        for order in iter(orders.get, None):\n            begun.put(order)\n            results.put(native.slow_call(*order))",
         "gpu/test_courier.py::test_it_runs_no_bytecode"),
    _one(11, "waits do not poll in slices", "gpu/native.py", "poll(device, 0, null)\n            spent", "poll(device, 1, null)\n            spent",
         "gpu/test_no_abort.py::test_ctrl_c_interrupts_a_wait_and_nothing_breaks"),
    _one(12, "any version is taken", "gpu/native.py", "if not found.startswith(version):", "if False:", "::test_another_version_is_refused_at_start"),
    _one(12, "private names are not checked", "gpu/native.py", "        if lost:\n", "        if False:\n",
         "::test_a_missing_c_function_is_refused_at_start", "::test_a_missing_private_name_is_refused_at_start[lib]"),
    _one(12, "provenance keeps frames", "provenance.py", "return Site(code, frame.f_lasti)", '_KEPT = globals().setdefault("_KEPT", [])\n            _KEPT.append(frame)\n            return Site(code, frame.f_lasti)',
         "::test_recording_keeps_no_frame_alive"),
    _one(12, "the package's own frames are the user's", "provenance.py", "name.startswith(_ROOT) or", "False or", "::test_a_site_is_the_users_line"),
    _one(12, "precise references compute in float32", "reference.py", "np.dtype(np.float64) if self.precise", "np.dtype(np.float32) if self.precise",
         "::test_precise_references_compute_in_float64", "::test_differences_of_a_precise_forward_match_a_gradient_to_many_digits"),
)  # fmt: skip


QUICK = ("storages are not padded", "precise references compute in float32")


def _copy(folder: Path) -> None:
    """The package and the tests, without caches."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "meganeura", folder / "meganeura", ignore=ignored)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)


def _apply(folder: Path, breakage: Breakage) -> str:
    """Make the edits; what is wrong with them, or ''."""
    for file, old, new in breakage.edits:
        path = folder / "meganeura" / file
        text = path.read_text() if path.exists() else ""
        if text.count(old) != 1:
            return f"{file} has this text {text.count(old)} times: {old!r}"
        path.write_text(text.replace(old, new))
    return ""


def _run(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit status of pytest on some tests in a copy, and its output; 124 when it ran too long."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *(f"tests/{t}" for t in tests)]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return 124, out
    return process.returncode, out


def notice(breakage: Breakage) -> tuple[bool, str]:
    """Whether a breakage makes every named test fail, and how or why not."""
    with tempfile.TemporaryDirectory(prefix="broken-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _copy(folder)
        wrong = _apply(folder, breakage)
        if wrong:
            return False, wrong
        status, out = _run(folder, breakage.tests)
    if status == 124:
        return True, "hangs"
    if status < 0:
        return True, f"dies of signal {-status}"
    passed = re.search(r"(\d+) passed", out)
    failed = re.search(r"(\d+) failed", out)
    if status != 1 or failed is None:
        return False, f"pytest ended with {status}: {out.strip().splitlines()[-1] if out.strip() else ''}"
    if passed is not None:
        return False, f"{passed[1]} of {len(breakage.tests)} tests passed"
    return True, f"{failed[1]} failed"


def unbroken(breakages: Sequence[Breakage]) -> str:
    """'' if all tests named by breakages pass in a copy that nobody broke, else pytest's last words."""
    tests = list(dict.fromkeys(t for b in breakages for t in b.tests))
    with tempfile.TemporaryDirectory(prefix="broken-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _copy(folder)
        status, out = _run(folder, tests)
    return "" if status == 0 else "\n".join(out.strip().splitlines()[-20:])


def survivors(breakages: Sequence[Breakage], report: bool = True) -> list[str]:
    """Run breakages two at a time; a line for each that nobody noticed."""
    out: list[str] = []

    def one(breakage: Breakage) -> tuple[Breakage, bool, str, float]:
        start = time.perf_counter()
        return breakage, *notice(breakage), time.perf_counter() - start

    with ThreadPoolExecutor(2) as pool:
        for breakage, noticed, how, seconds in pool.map(one, breakages):
            line = f"{breakage.point:2}  {'noticed ' if noticed else 'SURVIVES'}  {breakage.what}: {how}  ({seconds:.0f} s)"
            if report:
                print(line, flush=True)
            if not noticed:
                out.append(line)
    return out


def main(arguments: Sequence[str]) -> int:
    """Report on the breakages of the given points, or of all."""
    points = {int(a) for a in arguments if a != "--quick"}
    chosen = [b for b in BREAKAGES if (not points or b.point in points) and ("--quick" not in arguments or b.what in QUICK)]
    lost = unbroken(chosen)
    if lost:
        print(f"some of the tests fail although nothing is broken:\n{lost}")
        return 1
    found = survivors(chosen)
    print(f"{len(chosen) - len(found)} of {len(chosen)} breakages were noticed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
