"""Families of kernels: what tests of fusion run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from meganeura import gpu

FAMILIES: dict[str, dict[str, Any]] = {
    "cpu": {"family": "cpu"},
    "portable": {"family": "cpu", "subgroups": False, "subgroup_size": 0},
    "gpu": {"family": "gpu"},
    "small": {"family": "gpu", "subgroups": False, "subgroup_size": 0, "max_workgroup_size": 256},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels are chosen for another profile: all of them are right on every device."""
    device = gpu.current()
    own = device.profile
    device.profile = dataclasses.replace(own, **FAMILIES[request.param])
    yield request.param
    device.profile = own
