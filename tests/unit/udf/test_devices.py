"""Spark's GPU address as torch counts devices."""

from __future__ import annotations

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.errors import DeviceNotFound
from sparkinfer.udf.devices import device_name, with_task_device


@pytest.mark.parametrize(
    ("address", "visible", "name"),
    [
        ("2", "", "cuda:2"),
        ("2", "2,3", "cuda:0"),
        ("3", "2,3", "cuda:1"),
        ("1", "2,3", "cuda:1"),
        ("GPU-b", "GPU-a, GPU-b", "cuda:1"),
    ],
)
def test_an_address_is_a_physical_id_a_place_or_a_uuid(address, visible, name):
    assert device_name([address], {"CUDA_VISIBLE_DEVICES": visible}) == name


def test_a_uuid_becomes_the_one_visible_device():
    environment: dict[str, str] = {}
    assert device_name(["MIG-1"], environment) == "cuda:0"
    assert environment == {"CUDA_VISIBLE_DEVICES": "MIG-1"}


def test_an_address_that_is_not_visible_is_refused():
    with pytest.raises(DeviceNotFound, match="GPU 5"):
        device_name(["5"], {"CUDA_VISIBLE_DEVICES": "2,3"})


def test_outside_a_task_the_settings_stay():
    settings = EngineSettings()
    assert with_task_device(settings) is settings
