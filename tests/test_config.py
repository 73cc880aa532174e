from __future__ import annotations

import dataclasses
import warnings

import pytest

from meganeura import config
from meganeura.errors import MeganeuraError


def test_defaults_come_without_variables() -> None:
    assert config.resolve({}) == config.Config()


def test_arguments_win_over_variables() -> None:
    c = config.resolve({"MEGANEURA_BACKEND": "wgpudawn", "MEGANEURA_DEVICE_ID": "0x10de"}, backend="wgpu")
    assert c.backend == "wgpu"
    assert c.device_id == 0x10DE


@pytest.mark.parametrize(("text", "value"), [("1", True), ("yes", True), ("0", False), ("", False), ("off", False)])
def test_booleans(text: str, value: bool) -> None:
    assert config.resolve({"MEGANEURA_DEBUG": text}).debug is value


@pytest.mark.parametrize("variable", ["MEGANEURA_CHECK=maybe", "MEGANEURA_EGRAPH_CUTOFF=many", "MEGANEURA_BACKEND=cuda"])
def test_bad_values_name_the_variable(variable: str) -> None:
    name, value = variable.split("=")
    with pytest.raises(MeganeuraError, match=name):
        config.resolve({name: value})


def test_unknown_names_warn() -> None:
    with pytest.warns(UserWarning, match="MEGANEURA_DEBIG is no option"):
        config.resolve({"MEGANEURA_DEBIG": "1"})


def test_options_without_a_mechanism_say_so() -> None:
    with pytest.warns(UserWarning, match="no effect: WebGPU does not expose memory types"):
        config.resolve({"MEGANEURA_NO_DEVICE_LOCAL": "1"})
    with pytest.warns(UserWarning, match="no effect: no kernel uses matrix units"):
        config.resolve({"MEGANEURA_DISABLE_COOP": "1"})


def test_other_variables_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.resolve({"PATH": "/bin", "WGPU_BACKEND_TYPE": "Null"})


def test_frozen_and_documented() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.Config().debug = True  # type: ignore[misc]
    rows = config.describe()
    assert len(rows) == len(dataclasses.fields(config.Config))
    assert all(text for _, _, text in rows)


def test_trusted_modules_only_outside_debugging() -> None:
    assert config.Config().trusted_modules
    assert not config.Config(check=True).trusted_modules
    assert not config.Config(debug=True).trusted_modules


def test_unknown_argument() -> None:
    with pytest.raises(TypeError, match="colour"):
        config.resolve({}, colour=1)
