"""The device of the gpu tests. Software Vulkan runs its kernels in the queue's thread: tiny dispatches cost 1.4 us so."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("LP_NUM_THREADS", "0")

from meganeura import gpu


@pytest.fixture
def device() -> gpu.Device:
    return gpu.current()
