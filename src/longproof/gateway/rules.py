"""A configuration's sections as the rules that policies work by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

from longproof.errors import UsageError
from longproof.gateway.config import FleetConfig, KeySection, PriceSection, TenantSection
from longproof.gateway.keys import KeyRule, key_digest
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.controller_config import (
    ControllerConfig,
    KvBudget,
    QueueRule,
    ReplicaRule,
    SloRule,
    TenantRule,
    WatermarkRule,
)
from longproof.policy.metering import PriceBook, Prices, Sku, micro_usd
from longproof.policy.pools import PoolRule
from longproof.policy.routing import RoutingRule

_DIGEST_DIGITS = 64


def controller_config(
    config: FleetConfig, replicas: Iterable[ReplicaRule], proven: Mapping[str, ProvenLimits]
) -> ControllerConfig:
    """What the controller is told. UsageError for numbers that are no rule."""
    queue, slo = config.queue, config.slo
    try:
        return ControllerConfig(
            replicas=tuple(replicas),
            watermark=WatermarkRule(stop=config.watermark.stop, resume=config.watermark.resume),
            queue=QueueRule(
                age_bound_ns=queue.age_bound,
                overdue_share=queue.overdue_share,
                longest_wait_ns=queue.longest_wait,
                most_waiting=queue.most_waiting,
                most_waiting_per_tenant=queue.most_waiting_per_tenant,
                count_from_tokens=queue.count_from,
                engine_backoff_ns=queue.engine_backoff,
            ),
            slo=SloRule(
                ttft_ns=slo.ttft,
                ttft_ns_per_token=slo.ttft_per_token,
                itl_ns=slo.itl,
                tpot_ns=slo.tpot,
                min_hit=dict(slo.min_hit),
            ),
            tenants=tuple(_tenant(section) for section in config.tenant),
            proven=dict(proven),
        )
    except ValueError as problem:
        raise UsageError(f"the configuration cannot be meant: {problem}", advice="mend those numbers") from None


def routing_rule(config: FleetConfig) -> RoutingRule:
    """What the router works by."""
    pools = config.pools
    try:
        rule = PoolRule(
            long_from_tokens=None if pools.long_from == "never" else pools.long_from,
            long_pool=pools.long_pool,
            keep_replicas=pools.keep_replicas,
            idle_tokens=pools.idle_tokens,
            spill=pools.spill,
        )
    except ValueError as problem:
        raise UsageError(f"[pools] cannot be meant: {problem}", advice="mend those numbers") from None
    return RoutingRule(pools=rule)


def key_rules(config: FleetConfig) -> list[KeyRule]:
    """The keys. UsageError for one that is neither there nor a digest, and for two that are the same."""
    digests = [(section, _digest(section)) for section in config.key]
    seen: dict[str, str] = {}
    for section, digest in digests:
        if digest in seen:
            raise UsageError(
                f"keys '{seen[digest]}' and '{section.name}' are the same key", advice="give each key its own secret"
            )
        seen[digest] = section.name
    apart = {section.name for section in config.tenant if section.separate_prefixes}
    secrets: dict[str, str] = {}
    for section, digest in digests:
        tenant = section.tenant or section.name
        secrets[tenant] = min(digest, secrets.get(tenant, digest))  # the same for all keys of a tenant, in any order
    rules: list[KeyRule] = []
    for section, digest in digests:
        tenant = section.tenant or section.name
        rules.append(
            KeyRule(
                name=section.name,
                digest=digest,
                tenant=tenant,
                models=section.models,
                most_open=section.most_open,
                per_minute=section.per_minute,
                most_input_tokens=section.most_input_tokens,
                most_output_tokens=section.most_output_tokens,
                priority=section.priority,
                prefix_salt=_salt(secrets[tenant]) if tenant in apart else "",
                admin=section.admin,
            )
        )
    return rules


def price_book(sections: Iterable[PriceSection]) -> PriceBook:
    """What is sold. UsageError for a price that is none."""
    return PriceBook(skus=tuple(_sku(section) for section in sections))


def _tenant(section: TenantSection) -> TenantRule:
    rate = section.kv_token_seconds_per_s
    budget = None
    if rate is not None:
        budget = KvBudget(token_seconds_per_s=rate, burst_token_seconds=section.kv_burst_token_seconds or rate * 60)
    return TenantRule(
        name=section.name,
        weight=section.weight,
        budget=budget,
        most_running=section.most_running,
        most_waiting=section.most_waiting,
    )


def _digest(section: KeySection) -> str:
    if (section.sha256 is None) == (section.env is None):
        raise UsageError(
            f"key '{section.name}' needs either sha256 or env",
            advice="give the SHA-256 of the key in hexadecimal, or the name of an environment variable that holds it",
        )
    if section.env is not None:
        key = os.environ.get(section.env, "")
        if not key:
            raise UsageError(f"key '{section.name}': {section.env} is not set", advice=f"export {section.env}=… first")
        return key_digest(key)
    digest = (section.sha256 or "").lower()
    if len(digest) != _DIGEST_DIGITS or not all(digit in "0123456789abcdef" for digit in digest):
        raise UsageError(
            f"key '{section.name}': sha256 is not 64 hexadecimal digits", advice='printf %s "$KEY" | sha256sum'
        )
    return digest


def _salt(secret: str) -> str:
    return hashlib.sha256(f"longproof prefixes {secret}".encode()).hexdigest()


def _sku(section: PriceSection) -> Sku:
    def price(value: str | None) -> int | None:
        return None if value is None else micro_usd(value)

    try:
        prices = Prices(
            input_cold=price(section.input),
            input_cached=price(section.cached),
            output=price(section.output),
            residency=price(section.kv_token_seconds),
        )
    except (ValueError, ArithmeticError) as problem:
        raise UsageError(
            f"[[price]] '{section.name}' has no price: {problem}", advice='write USD per million, like "0.25"'
        ) from None
    return Sku(name=section.name, prices=prices, models=section.models, pools=section.pools)
