"""What is to be launched, and where one server's processes stand.

    LaunchOrder ──placements──▶ Placement per role ──engine──▶ ServerCommand (argv, env)

A server larger than a host runs one process per host, told apart by its rank; smaller ones share a host, told apart by
port and visible devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.errors import UsageError
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Launch, Layout
from longproof.plan.layout_pools import check_pools
from longproof.plan.layouts import Arrangement, describe_arrangement, devices_of, require_layout

LEADER_IN_SHELL = "$LEADER_ADDRESS"
DEFAULT_PORT = 8000


class Role(StrEnum):
    """What a server does. SERVE: everything."""

    SERVE = "serve"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """`model`: a directory, file or hub id as the engine takes it. `launch`: as planned; its layout gives way to the
    arrangement's. `devices_per_host`: accelerators of one machine. `image`: of the container, for manifests."""

    model: str
    geometry: ModelGeometry
    launch: Launch
    arrangement: Arrangement
    devices_per_host: int = 8
    host: str = "0.0.0.0"
    port: int = DEFAULT_PORT
    served_name: str | None = None
    image: str | None = None

    def __post_init__(self) -> None:
        if self.devices_per_host < 1 or not 0 < self.port < 65_000:
            raise UsageError(
                f"{self.devices_per_host} devices per host and port {self.port} make no launch",
                advice="give at least one device per host and a port below 65,000",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One process. `nodes`, `node`: how many share the server and which one this is; numbers, or what the orchestrator
    expands. `slot`: which server of its host, from 0. `headless`: it serves no HTTP."""

    role: Role
    layout: Layout
    nodes: int
    node: str
    leader: str
    port: int
    slot: int = 0
    headless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """A process to start: `argv` and what its environment needs beside. `comment`: where, one sentence."""

    role: Role
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All servers of one role."""

    role: Role
    layout: Layout
    replicas: int
    devices: int
    nodes: int
    per_host: int


def pools_of(order: LaunchOrder) -> tuple[Pool, ...]:
    """The pools of an order, each layout checked. Raises LayoutError for a layout the engine refuses or that does not
    divide over hosts."""
    arrangement, engine = order.arrangement, order.launch.engine
    wanted = [(Role.SERVE if arrangement.decode is None else Role.PREFILL, arrangement.layout, arrangement.replicas)]
    if arrangement.decode is not None:
        wanted.append((Role.DECODE, arrangement.decode, arrangement.decode_replicas))
        for broken in check_pools(order.geometry, engine, arrangement.layout, arrangement.decode):
            raise broken.error(describe_arrangement(arrangement))
    found: list[Pool] = []
    for role, layout, replicas in wanted:
        require_layout(
            order.geometry, engine, layout, platform=order.launch.device, speculation=order.launch.speculation
        )
        devices = devices_of(engine, layout)
        nodes = -(-devices // order.devices_per_host)
        if devices % nodes:
            raise UsageError(
                f"a server of {devices} devices does not divide over {nodes} hosts of {order.devices_per_host}",
                advice="use a layout whose devices fill whole hosts",
            )
        found.append(
            Pool(
                role=role,
                layout=layout,
                replicas=replicas,
                devices=devices,
                nodes=nodes,
                per_host=max(1, order.devices_per_host // devices),
            )
        )
    return tuple(found)


def shell_placements(order: LaunchOrder, pool: Pool) -> tuple[tuple[Placement, str], ...]:
    """The distinct processes of a pool, each with where it is to be started."""
    if pool.nodes > 1:
        groups = "once" if pool.replicas == 1 else f"{pool.replicas} times, on hosts of their own"
        return tuple(
            (
                Placement(
                    role=pool.role, layout=pool.layout, nodes=pool.nodes, node=str(node), leader=LEADER_IN_SHELL,
                    port=order.port, headless=node > 0,
                ),
                f"{pool.role.value}: host {node} of {pool.nodes}, {groups}; LEADER_ADDRESS is host 0",
            )
            for node in range(pool.nodes)
        )  # fmt: skip
    here = min(pool.per_host, pool.replicas)
    return tuple(
        (
            Placement(
                role=pool.role, layout=pool.layout, nodes=1, node="0", leader=LEADER_IN_SHELL, port=order.port + slot,
                slot=slot,
            ),
            f"{pool.role.value}: server {slot + 1} of {_times(pool, slot, here)}",
        )
        for slot in range(here)
    )  # fmt: skip


def _times(pool: Pool, slot: int, here: int) -> str:
    """``3``, or on how many hosts the command of this slot is to be started."""
    hosts = -(-(pool.replicas - slot) // here)
    if pool.replicas <= here:
        return str(pool.replicas)
    return f"a host, on {hosts} {'host' if hosts == 1 else 'hosts'}; {pool.replicas} servers in all"
