"""The device files: complete, cited, found by any spelling."""

from __future__ import annotations

from importlib import resources

import pytest

from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.errors import UsageError
from longproof.hardware.catalogue import all_devices, find_device, parse_device

WANTED = {
    *("h100-sxm", "h100-500w", "h100-pcie", "h200", "h20", "b200", "gb200", "gb300", "a100-80gb", "a100-40gb", "l40s"),
    *("rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000", "mi300x", "mi355x", "tpu-v5e", "apple-m3-ultra", "cpu"),
}


def test_every_device_of_the_plan_ships() -> None:
    assert {d.name for d in all_devices()} >= WANTED


def test_every_figure_says_where_it_came_from_or_that_nobody_knows() -> None:
    for device in all_devices():
        figures = [
            device.nominal_memory_bytes, device.usable_memory_bytes, device.bandwidth_bytes_per_second,
            *device.dense_flops.values(), device.scale_up.bytes_per_second, device.scale_out_bytes_per_second,
            device.host_link.bytes_per_second, *(p.watts for p in device.power),
            device.price.low, device.price.typical, device.price.high,
        ]  # fmt: skip
        for figure in figures:
            if isinstance(figure, Measured):
                assert figure.value > 0
                assert len(figure.source) > 10
                if figure.provenance is Provenance.REPORTED:
                    assert "(" in figure.source  # url (date)
            else:
                assert figure.reason == "no source was found"


def test_no_alias_means_two_devices() -> None:
    plain = ["".join(c for c in s.lower() if c.isalnum()) for d in all_devices() for s in {d.name, *d.aliases}]
    per_device = [{"".join(c for c in s.lower() if c.isalnum()) for s in (d.name, *d.aliases)} for d in all_devices()]
    assert len(set(plain)) == sum(len(names) for names in per_device)


def test_file_name_is_the_device_name() -> None:
    files = {f.name for f in resources.files("longproof.hardware").joinpath("devices").iterdir()}
    assert files == {f"{d.name}.toml" for d in all_devices()}


@pytest.mark.parametrize("spelling", ["h100", "H100 SXM", "NVIDIA-H100-80GB-HBM3", "h100_sxm5"])
def test_a_device_is_found_when_spelled_differently(spelling: str) -> None:
    assert find_device(spelling).name == "h100-sxm"


def test_an_unknown_device_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UsageError) as caught:
        find_device("rtx 5900")
    assert "rtx 5900" in caught.value.problem
    assert "rtx-5090" in caught.value.advice


def test_an_unknown_device_without_a_near_name_lists_all() -> None:
    with pytest.raises(UsageError) as caught:
        find_device("zzz")
    assert "tpu-v5e" in caught.value.advice


def test_power_variants_of_one_chip_differ_in_peak() -> None:
    # The context-parallelism paper's board: 500 W, 2.4 TB/s, 800 TFLOP/s; the SXM5 board 989.4 at 700 W.
    limited, full = find_device("h100-500w"), find_device("h100-sxm")
    assert limited.flops("bf16") == limited.dense_flops["bf16"]
    assert isinstance(limited.flops("bf16"), Measured)
    assert limited.flops("bf16").value == 800e12  # type: ignore[union-attr]
    assert full.flops("bf16").value == 989.4e12  # type: ignore[union-attr]


def test_bf16_and_fp16_stand_in_for_one_another_when_one_is_missing() -> None:
    apple = find_device("apple-m4-max")
    assert isinstance(apple.dense_flops["bf16"], Unknown)
    assert apple.flops("bf16") == apple.dense_flops["fp16"]


def test_memory_is_what_software_sees_when_known() -> None:
    # 46,068 MiB by NVML = 48,305,799,168 B
    assert find_device("l40s").memory_bytes().value == 48_305_799_168  # type: ignore[union-attr]
    assert find_device("b300").memory_bytes() == find_device("b300").nominal_memory_bytes


def test_a_file_without_a_cited_source_is_our_bug() -> None:
    with pytest.raises(KeyError):
        parse_device({"memory": {"nominal_bytes": {"value": 1, "source": "nowhere"}}})
