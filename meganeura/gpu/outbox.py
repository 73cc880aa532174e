"""What leaves by way of the courier: runs that were handed over are `away` until it is known whether the driver has them.

In: what the recorder noted. Out: a submit of its own, in order: it is out before anything else is submitted, before memory that it uses is
written, and at the latest when the next is handed over; or, if it could not be finished, noted again.

Ctrl-C may strike at any call: each step is such that it can be taken again.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError
from .courier import Courier

if TYPE_CHECKING:
    from .recorder import Record, Recorder, Run


class Away:
    """What was handed over: records, their runs and epoch. `issued`: see Recorder; `dead`: handles of bind groups to release once it is
    out. `handles`: (release, handle) of what only the order needs; `results`: what the courier brought. Then it is `out`, with the
    driver's `refusal` if there was one, or `lost`: to be encoded anew."""

    __slots__ = ("dead", "epoch", "handles", "issued", "lost", "out", "records", "refusal", "results", "runs")

    def __init__(self, records: list[Record], runs: list[Run], epoch: int, issued: Sequence[Any], dead: list[Any]) -> None:
        self.records, self.runs, self.epoch, self.issued, self.dead = records, runs, epoch, issued, dead
        self.handles: list[tuple[Any, Any]] = []
        self.results: list[Any] = []
        self.out = self.lost = False
        self.refusal: Exception | None = None

    def release(self) -> None:
        """Let go of the handles, none twice."""
        while self.handles:
            release, handle = self.handles.pop()
            release(handle)


class Outbox:
    """Hands over and delivers for a recorder, under the device's lock and with collections paused."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.native = recorder, recorder.native
        # a Dawn device that somebody else opened may be for one thread at a time
        self.allowed = self.native.finishes_late or "implicit-device-synchronization" in recorder.device.wgpu.features
        self.courier: Courier | None = None
        self.away: Away | None = None
        self.busy = False  # in one of the two calls that are not to be made inside each other

    def hand_over(self) -> bool:
        """Encode what is noted and let the courier do the rest. Returns False where it cannot: all is noted still."""
        self._refuse_nested()
        try:
            self.busy = True
            courier = self._courier()
            return courier is not None and self._hand_over(courier)
        finally:
            self.busy = False

    def _refuse_nested(self) -> None:
        if self.busy:
            raise DeviceError("a signal's handler or a finalizer used the device in the middle of a submit; use it from plain code")

    def _hand_over(self, courier: Courier) -> bool:
        recorder, n = self.recorder, self.native
        records, sent = recorder.records, list[None]()
        encoder = n.create_encoder(recorder.device.handle, n.NULL)
        issued = [entry for entry in recorder.issued if entry[0] < len(records)]
        away = Away(records, recorder.runs, recorder.epoch, issued, recorder.dead)
        away.handles.append((n.release_encoder, encoder))
        try:
            order = self._order(encoder, records, away.handles)
            if order is not None:
                self._deliver()  # after the encoding, which leaves the courier more time
                if recorder.records is records:  # what could not be delivered is among them otherwise
                    courier.send(order, sent)
        finally:
            if sent:
                self.away, recorder.records, recorder.runs, recorder.dead = away, [], [], []
                recorder.epoch += 1
                if not n.finishes_late:
                    recorder.uploaded = 0
            else:
                away.release()
        if sent:
            recorder._keep_unrecorded(len(records))
        return bool(sent)

    def _courier(self) -> Courier | None:
        """The courier, made when first asked for; None where it is of no use: numbers of eager dispatches are written at a submit,
        devices may be for one thread, loggers may hold locks, and Python's threads end when it exits."""
        if not self.allowed or self.recorder.slot or self.native.logger.isEnabledFor(logging.DEBUG):
            return None
        if self.courier is None and not sys.is_finalizing():
            try:
                self.courier = Courier(self.native)
            except RuntimeError:
                self.allowed = False
        return None if self.courier is None or self.courier.ended() else self.courier

    def _order(self, encoder: Any, records: Sequence[Record], handles: list[tuple[Any, Any]]) -> tuple[Any, ...] | None:
        """The courier's order; None for what cannot be encoded: which dispatch it is a flush will find."""
        try:
            self.recorder.fill(encoder, records)
            return self.native.order(self.recorder.device.queue, encoder, handles)
        except self.native.errors:
            return None

    def deliver(self) -> Exception | None:
        """See that what was handed over is out, or noted again. Returns the error of what the driver refused."""
        self._refuse_nested()
        try:
            self.busy = True
            return self._deliver()
        finally:
            self.busy = False

    def _deliver(self) -> Exception | None:
        away, recorder = self.away, self.recorder
        if away is None:
            return None
        if not away.out and not away.lost:
            self._bring_out(away)
        if away.lost:
            self._take_back(away)
        elif away.refusal is not None:
            return self._refused(away, away.refusal)
        else:
            recorder.device.pool.submitted = away.epoch
            recorder.gone, self.away = [*recorder.gone, *away.dead], None
            recorder.is_out(away.epoch)
        return None

    def _bring_out(self, away: Away) -> None:
        """Wait for the courier, and submit what it finished if it did not do that."""
        courier = self.courier
        assert courier is not None
        if not courier.take(away.results):  # Python exits, and the thread ended at its work
            away.out, away.lost = not self.native.finishes_late, self.native.finishes_late
            away.handles.clear()
            return
        away.release()
        errors = courier.errors
        if not self.native.finishes_late:
            away.refusal = self.native.errors[0](errors[-1]) if errors else None
            away.out = True
        elif errors:
            away.lost = True
            self.native.release_commands(away.results.pop())
        else:
            self._submit(away)

    def _submit(self, away: Away) -> None:
        sent: list[None] = []
        try:
            self.native.submit(self.recorder.device.queue, away.results, sent)
        except self.native.errors as error:
            away.refusal = error
        finally:
            if sent:
                away.out = True
                self.recorder.uploaded = 0
            else:
                away.lost = True  # the command buffer is released

    def _refused(self, away: Away, refusal: Exception) -> Exception:
        """The driver refused it: its buffers hold nothing, nor do those that were to be made of them since."""
        recorder = self.recorder
        failure = recorder.device.translate(refusal, "submitting", None)
        if recorder.device.lost:
            raise failure from refusal
        self._take_back(away)
        return recorder.drop_records(dict.fromkeys(range(len(away.records)), failure))

    def _take_back(self, away: Away) -> None:
        """Note again what was handed over, before what was noted since."""
        recorder, shift = self.recorder, len(away.records)
        for record in away.records:
            for buffer in record[7]:
                buffer.epoch = recorder.epoch
        for run in away.runs:
            run.frozen.still_read(away.epoch, recorder.epoch)
        records, dead = away.records + recorder.records, away.dead + recorder.dead
        runs = away.runs + [run._replace(start=run.start + shift, end=run.end + shift) for run in recorder.runs]
        issued = deque((*away.issued, *((i + shift, buffer) for i, buffer in recorder.issued)), recorder.issued.maxlen)
        recorder.records, recorder.runs, recorder.issued, recorder.dead, self.away = records, runs, issued, dead, None
