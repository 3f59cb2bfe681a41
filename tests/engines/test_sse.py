"""The frame parser alone: line ends, fields, limits, and that cuts do not matter."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longproof.engines.sse import Comment, Event, Frame, SseParser, Stray, TooLong


def parse(*pieces: bytes, finish: bool = True, max_event_bytes: int = 1 << 20) -> list[Frame]:
    parser = SseParser(max_event_bytes=max_event_bytes)
    frames = [frame for piece in pieces for frame in parser.feed(piece)]
    return frames + (parser.finish() if finish else [])


def event(data: bytes, name: str = "") -> Event:
    return Event(name=name, data=data)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_event_is_delivered_at_its_blank_line_when_lines_end_any_way(end: bytes) -> None:
    parser = SseParser()
    assert parser.feed(b"data: one" + end) == []
    assert parser.feed(end) == [event(b"one")]


def test_crlf_is_one_line_end_when_cut_between_cr_and_lf() -> None:
    # were the LF a line of its own, it would be a blank line: the event would end before its second data line
    assert parse(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [event(b"a\nb")]


def test_blank_line_is_seen_when_cr_is_followed_by_lf_and_lf() -> None:
    assert parse(b"data: a\r", b"\n", b"\ndata: b\n\n") == [event(b"a"), event(b"b")]


def test_data_lines_are_joined_when_an_event_has_several() -> None:
    assert parse(b"data: a\ndata:b\ndata:  c\n\n") == [event(b"a\nb\n c")]


def test_byte_order_mark_is_dropped_when_it_opens_the_stream() -> None:
    assert parse(b"\xef", b"\xbb\xbfdata: a\n\n") == [event(b"a")]
    assert parse(b"data: a\n\n\xef\xbb\xbfdata: b\n\n")[1:] == [Stray(line=b"\xef\xbb\xbfdata: b")]


def test_comments_are_frames_when_a_proxy_keeps_alive() -> None:
    assert parse(b": keep-alive\n\n:\n\ndata: a\n\n") == [Comment(text="keep-alive"), Comment(text=""), event(b"a")]


def test_event_name_belongs_to_one_event_when_the_next_has_none() -> None:
    assert parse(b"event: error\ndata: a\n\ndata: b\n\n") == [event(b"a", "error"), event(b"b")]


def test_named_event_without_data_is_dropped_as_the_standard_says() -> None:
    assert parse(b"event: ping\n\ndata: a\n\n") == [event(b"a")]


def test_error_field_is_an_error_event_when_an_older_llamacpp_sends_it() -> None:
    assert parse(b'error: {"code":500}\n\n') == [event(b'{"code":500}', "error")]


def test_id_and_retry_are_ignored() -> None:
    assert parse(b"id: 7\nretry: 1000\ndata: a\n\n") == [event(b"a")]


def test_line_without_field_is_handed_on_when_it_is_bare_json() -> None:
    assert parse(b'{"error":"x"}\n') == [Stray(line=b'{"error":"x"}')]


def test_last_event_is_delivered_when_the_body_ends_without_blank_line() -> None:
    assert parse(b"data: a\n\ndata: [DONE]") == [event(b"a"), event(b"[DONE]")]
    assert parse(b"data: [DONE]\n") == [event(b"[DONE]")]


def test_last_event_is_not_delivered_when_the_connection_was_cut() -> None:
    assert parse(b"data: a\n\ndata: {half", finish=False) == [event(b"a")]


def test_line_beyond_the_limit_ends_parsing_with_one_frame() -> None:
    # the limit is 8 bytes: "data: ab" is exactly 8 and passes, one more does not
    assert parse(b"data: ab\n\n", max_event_bytes=8) == [event(b"ab")]
    frames = parse(b"data: abc", b"d\n\ndata: e\n\n", max_event_bytes=8)
    assert frames == [TooLong(limit_bytes=8)]


def test_event_of_many_lines_beyond_the_limit_ends_parsing() -> None:
    # each line is 10 bytes and leaves 5 in the event; the limit of 24 falls in the fourth line: 15 + 10 > 24
    assert parse(b"data: abcd\n" * 9, max_event_bytes=24) == [TooLong(limit_bytes=24)]


LINES = st.lists(
    st.one_of(
        st.binary(max_size=12).filter(lambda line: b"\n" not in line and b"\r" not in line),
        st.sampled_from(
            [b"", b"data: x", b"data:", b": c", b"event: error", b"error: y", b"\xef\xbb\xbfdata: z", b"{}"]
        ),
        st.text(max_size=6).map(lambda text: b"data: " + text.replace("\n", "").replace("\r", "").encode()),
    ),
    max_size=12,
)


@given(lines=LINES, ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12), data=st.data())
@example(lines=[b"data: x", b"", b"data: y"], ends=[b"\r"] * 12, data=None)
def test_frames_are_the_same_however_the_body_is_cut(
    lines: list[bytes], ends: list[bytes], data: st.DataObject
) -> None:
    # a lone CR before an empty line that ends in LF would read as one CRLF: keep line ends of one kind unless CRLF
    body = b"".join(line + ends[0] for line in lines) if b"\r" in ends else b"".join(map(bytes.__add__, lines, ends))
    whole = parse(body)
    assert parse(*(body[at : at + 1] for at in range(len(body)))) == whole
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert parse(*pieces) == whole


@given(lines=LINES)
def test_frames_are_the_same_whichever_way_lines_end(lines: list[bytes]) -> None:
    assert parse(b"".join(line + b"\n" for line in lines)) == parse(b"".join(line + b"\r\n" for line in lines))
    assert parse(b"".join(line + b"\n" for line in lines)) == parse(b"".join(line + b"\r" for line in lines))


@given(pieces=st.lists(st.binary(max_size=64), max_size=16), limit=st.integers(1, 64))
def test_nothing_raises_when_the_bytes_are_arbitrary(pieces: list[bytes], limit: int) -> None:
    frames = parse(*pieces, max_event_bytes=limit)
    assert not any(isinstance(frame, TooLong) for frame in frames[:-1])
