"""Reading the device files that ship with the package: `devices/*.toml`, one device each.

A figure in a file is one of

    x = { value = 1, source = "key" }           key names a table under [sources] with url and date
    x = { value = 1, derived = "how" }          computed; with source = "key" from a figure of that source
    x = { source = "none found" }               nobody's figure was found: Unknown
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, cast

from longproof.domain.measure import Measured, Provenance, Reading, Unknown, derived
from longproof.errors import UsageError
from longproof.hardware.device import BoardPower, Device, Efficiency, HostLink, PriceRange, ScaleUp

NONE_FOUND = "none found"

# The raw shape of a parsed TOML file; it does not leave this module.
_Table = Mapping[str, Any]


@cache
def all_devices() -> tuple[Device, ...]:
    """Every device that ships, by name."""
    files = resources.files("longproof.hardware").joinpath("devices").iterdir()
    texts = sorted((f.name, f.read_text(encoding="utf-8")) for f in files if f.name.endswith(".toml"))
    return tuple(parse_device(tomllib.loads(text)) for _, text in texts)


def find_device(name: str) -> Device:
    """The device of that name or alias; case, spaces, hyphens and underscores do not matter.

    Raises UsageError with the nearest names when there is none.
    """
    spellings = _spellings()
    wanted = _plain(name)
    if wanted in spellings:
        return spellings[wanted]
    near = list(dict.fromkeys(spellings[s].name for s in get_close_matches(wanted, list(spellings), n=4, cutoff=0.5)))
    listed = near or [d.name for d in all_devices()]
    raise UsageError(
        f"no device is called '{name}'", advice=f"{'did you mean' if near else 'choose one of'}: {', '.join(listed)}"
    )


@cache
def _spellings() -> dict[str, Device]:
    return {_plain(s): device for device in all_devices() for s in (device.name, *device.aliases)}


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def parse_device(raw: _Table) -> Device:
    """One parsed file → Device. Raises KeyError or ValueError for a file that is not of that form (our bug, not the
    user's)."""
    sources = cast(_Table, raw.get("sources", {}))
    memory, up, host = raw["memory"], raw["scale_up"], raw["host_link"]
    price, efficiency = raw["price_usd_per_hour"], raw["efficiency"]
    return Device(
        name=raw["name"],
        title=raw["title"],
        vendor=raw["vendor"],
        aliases=tuple(raw["aliases"]),
        nominal_memory_bytes=_whole(memory["nominal_bytes"], sources),
        usable_memory_bytes=_whole(memory["usable_bytes"], sources),
        bandwidth_bytes_per_second=_figure(memory["bandwidth_bytes_per_second"], sources),
        dense_flops={dtype: _figure(value, sources) for dtype, value in raw["dense_flops"].items()},
        scale_up=ScaleUp(
            name=up["name"],
            bytes_per_second=_figure(up["bytes_per_second"], sources),
            devices=up["devices"],
            switched=up["switched"],
        ),
        scale_out_bytes_per_second=_figure(raw["scale_out"]["bytes_per_second"], sources),
        host_link=HostLink(name=host["name"], bytes_per_second=_figure(host["bytes_per_second"], sources)),
        power=tuple(BoardPower(watts=_figure(p["watts"], sources), note=p["note"]) for p in raw.get("power", ())),
        price=PriceRange(
            low=_figure(price["low"], sources),
            typical=_figure(price["typical"], sources),
            high=_figure(price["high"], sources),
        ),
        prefill=_efficiency(efficiency["prefill_fraction"], sources),
        decode=_efficiency(efficiency["decode_fraction"], sources),
    )


def _figure(raw: _Table, sources: _Table) -> Reading[float]:
    if "derived" in raw:
        cited = f"; {_cite(raw['source'], sources)}" if "source" in raw else ""
        return derived(float(raw["value"]), f"{raw['derived']}{cited}")
    if raw["source"] == NONE_FOUND:
        return Unknown(reason="no source was found")
    return Measured(value=float(raw["value"]), provenance=Provenance.REPORTED, source=_cite(raw["source"], sources))


def _whole(raw: _Table, sources: _Table) -> Reading[int]:
    found = _figure(raw, sources)
    if isinstance(found, Unknown):
        return found
    return Measured(value=int(found.value), provenance=found.provenance, source=found.source)


def _efficiency(raw: _Table, sources: _Table) -> Reading[Efficiency]:
    if raw["source"] == NONE_FOUND:
        return Unknown(reason="not fitted: no published run was found")
    fitted = Efficiency(value=float(raw["value"]), band=float(raw["band"]), fitted_on=str(raw["fitted_on"]))
    return derived(fitted, f"fitted on {fitted.fitted_on}; {_cite(raw['source'], sources)}")


def _cite(key: str, sources: _Table) -> str:
    source = sources[key]
    return f"{source['url']} ({source['date']})"
