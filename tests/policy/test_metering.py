"""What a request costs, to the nano-dollar."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.arrivals import EndKind
from longproof.policy.metering import (
    CHARGED,
    Bill,
    CacheSource,
    Ending,
    Kind,
    PriceBook,
    Prices,
    RequestUsage,
    Sku,
    UsageSource,
    bill,
    micro_usd,
    residency_token_ms,
)

S = 1_000_000_000
LONG = Sku(
    name="long",
    prices=Prices(
        input_cold=micro_usd("1.25"),
        input_cached=micro_usd("0.125"),
        output=micro_usd("10"),
        residency=micro_usd("0.5"),
    ),
    pools=("long",),
)
SHORT = Sku(name="short", prices=Prices(input_cold=250_000, input_cached=0, output=2_000_000), models=("m",))
BOOK = PriceBook(skus=(LONG, SHORT))


def usage(
    input_tokens: int = 200_000, cached: int | None = 150_000, output: int = 1_000, kv_token_ms: int | None = 7_000_000
) -> RequestUsage:
    return RequestUsage(
        input_tokens=input_tokens,
        output_tokens=output,
        cached_tokens=cached,
        cached_from=CacheSource.UNKNOWN if cached is None else CacheSource.ENGINE,
        kv_token_ms=kv_token_ms,
        counted_by=UsageSource.ENGINE,
    )


def billed(of: RequestUsage, *, pool: str = "long", model: str = "m", ending: Ending = Ending.COMPLETED) -> Bill:
    return bill(of, model=model, pool=pool, ending=ending, book=BOOK)


def amounts(priced: Bill) -> list[int | None]:
    return [line.amount_nano_usd for line in priced.lines]


def test_every_line_is_exact_when_all_is_known() -> None:
    # 50,000 cold x 1.25 $/M = 0.0625 $;  150,000 cached x 0.125 $/M = 0.01875 $;  1,000 x 10 $/M = 0.01 $;
    # 7,000,000 token-ms = 7,000 token-s x 0.5 $/M = 0.0035 $.  Sum 0.09475 $.
    priced = billed(usage())
    assert [line.kind for line in priced.lines] == list(Kind)
    assert amounts(priced) == [62_500_000, 18_750_000, 10_000_000, 3_500_000]
    assert priced.total_nano_usd == 94_750_000
    assert (priced.sku, priced.charged) == ("long", True)


def test_all_input_is_cold_when_nobody_said_what_was_cached() -> None:
    priced = billed(usage(cached=None))
    assert priced.line(Kind.INPUT_COLD).quantity == 200_000
    assert priced.line(Kind.INPUT_CACHED).quantity == 0


def test_the_first_sku_that_covers_pool_and_model_decides_when_several_do() -> None:
    assert billed(usage(), pool="long").sku == "long"
    assert billed(usage(), pool="chat").sku == "short"


def test_residency_costs_nothing_when_a_sku_does_not_price_it() -> None:
    # 50,000 x 0.25 $/M = 0.0125 $; cached is free; 1,000 x 2 $/M = 0.002 $
    assert amounts(billed(usage(), pool="chat")) == [12_500_000, 0, 2_000_000, 0]


def test_there_is_no_total_when_no_sku_covers_it() -> None:
    priced = billed(usage(), pool="chat", model="other")
    assert priced.sku is None
    assert priced.total_nano_usd is None


def test_there_is_no_amount_when_a_priced_residency_was_not_followed() -> None:
    priced = billed(usage(kv_token_ms=None))
    assert priced.line(Kind.RESIDENCY).amount_nano_usd is None
    assert priced.total_nano_usd is None


def test_a_bound_of_the_input_costs_nothing_when_nobody_counted() -> None:
    bounded = replace(usage(cached=None), counted_by=UsageSource.BOUND)
    priced = billed(bounded, ending=Ending.CANCELLED)
    assert priced.line(Kind.INPUT_COLD).quantity == 200_000
    assert amounts(priced) == [0, 0, 10_000_000, 0]


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending not in CHARGED])
def test_usage_is_kept_and_nothing_charged_when_the_service_failed(ending: Ending) -> None:
    priced = billed(usage(), ending=ending)
    assert priced.line(Kind.OUTPUT).quantity == 1_000
    assert (priced.charged, priced.total_nano_usd) == (False, 0)


def test_a_client_that_left_pays_what_it_used_when_cancelled() -> None:
    assert billed(usage(), ending=Ending.CANCELLED).total_nano_usd == 94_750_000


def test_an_amount_is_rounded_half_to_even_when_it_is_no_whole_nano_dollar() -> None:
    # 1 token x 1,500 uUSD/M = 1.5 nUSD → 2;  1 x 2,500 = 2.5 → 2
    for price, expected in ((1_500, 2), (2_500, 2)):
        book = PriceBook(skus=(Sku(name="x", prices=Prices(input_cold=price, input_cached=0, output=0)),))
        priced = bill(usage(1, 0, 0, 0), model="m", pool="p", ending=Ending.COMPLETED, book=book)
        assert priced.total_nano_usd == expected


def test_every_end_of_the_controller_has_a_bill() -> None:
    assert {kind.value for kind in EndKind} <= {ending.value for ending in Ending}


def test_prices_are_read_as_written_when_they_are_decimal() -> None:
    assert micro_usd("0.07") == 70_000
    assert micro_usd(3) == 3_000_000


def test_a_price_is_refused_when_it_is_too_fine_or_negative() -> None:
    with pytest.raises(ValueError, match="finer than"):
        micro_usd("0.0000001")
    with pytest.raises(ValueError, match="negative"):
        Prices(output=-1)
    with pytest.raises(ValueError, match="above 1,000 USD"):
        Prices(output=micro_usd(1_001))


def test_usage_is_refused_when_more_is_cached_than_was_asked() -> None:
    with pytest.raises(ValueError, match="more is cached"):
        usage(10, 11)


def test_residency_is_the_area_under_the_tokens() -> None:
    # 1,000 tokens for 10 s = 10,000 token-s; 200 more growing evenly over the last 4 s = 200 x 4 / 2 = 400 token-s
    assert residency_token_ms(1_000, 200, 10 * S, 6 * S) == 10_400_000


def test_residency_is_that_of_the_input_when_no_token_came() -> None:
    assert residency_token_ms(1_000, 0, 3 * S, None) == 3_000_000


def test_residency_is_nothing_when_the_clock_runs_backwards() -> None:
    assert residency_token_ms(1_000, 50, -S, S) == 0


@given(
    input_tokens=st.integers(0, 2_000_000),
    share=st.floats(0, 1),
    output=st.integers(0, 100_000),
    kv_token_ms=st.integers(0, 10**15),
    prices=st.tuples(*[st.integers(0, 10**8)] * 4),
)
def test_a_bill_adds_up_and_never_loses_a_token(
    input_tokens: int, share: float, output: int, kv_token_ms: int, prices: tuple[int, int, int, int]
) -> None:
    cold, cached, out, residency = prices
    sku = Sku(name="x", prices=Prices(input_cold=cold, input_cached=cached, output=out, residency=residency))
    of = usage(input_tokens, int(input_tokens * share), output, kv_token_ms)
    priced = bill(of, model="m", pool="p", ending=Ending.COMPLETED, book=PriceBook(skus=(sku,)))
    quantities = [line.quantity for line in priced.lines]
    assert quantities[0] + quantities[1] == input_tokens  # type: ignore[operator]
    assert quantities[2:] == [output, kv_token_ms]
    exact = (
        of.cold_tokens * cold + (of.cached_tokens or 0) * cached + output * out
    ) / 1e3 + kv_token_ms * residency / 1e6
    assert priced.total_nano_usd == pytest.approx(exact, abs=2 + exact * 1e-12)
    assert priced.total_nano_usd == sum(line.amount_nano_usd or 0 for line in priced.lines)
