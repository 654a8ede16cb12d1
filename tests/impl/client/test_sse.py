"""The parser of server-sent events: the corners of the standard, and any cut of the bytes."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.budget import effort

from cancelmark.impl.sse import Parser, ServerEvent, TooLongError


def parsed(*pieces: bytes) -> list[ServerEvent]:
    parser = Parser()
    return [event for piece in pieces for event in parser.feed(piece)]


def data(*pieces: bytes) -> list[str | None]:
    return [event.data for event in parsed(*pieces)]


@pytest.mark.parametrize(("stream", "expected"), [
    (b"data: a\n\n", ["a"]),
    (b"data: a\r\n\r\n", ["a"]),
    (b"data: a\r\r", ["a"]),
    (b"data: a\r\n\ndata: b\n\r\n", ["a", "b"]),
    (b"data:a\ndata:  b\ndata\ndata:\n\n", ["a\n b\n\n"]),
    (b"data\n\n", [""]),
    (b"data:\n\n", [""]),
    (b"\n\n\ndata: a\n\n\n\n", ["a"]),
    (b": a comment\n\ndata: a\n: another\ndata: b\n\n", ["a\nb"]),
    (b":\n\n", []),
    (b"data: a: b:c\n\n", ["a: b:c"]),
    (b"nonsense: a\ndata: a\nDATA: b\n data: c\n\n", ["a"]),
    ("\ufeffdata: a\n\n\ufeffdata: b\n\n".encode(), ["a"]),
    ("\ufeff\ufeffdata: a\n\ndata: b\n\n".encode(), ["b"]),
    ("data: é→\U0001f600\n\n".encode(), ["é→\U0001f600"]),
    ("data: a\u2028b\x85c\x0bd\n\n".encode(), ["a\u2028b\x85c\x0bd"]),
    (b"data: \xff\xc3\n\ndata: a\n\n", ["\ufffd\ufffd", "a"]),
    (b"data: a", []),
    (b"data: a\n", []),
    (b"data: a\r", []),
    (b"data: a\r\n", []),
    (b"data: a\r\ndata: b\r\n\r", ["a\nb"]),
    (b"", []),
])
def test_the_corners_of_the_standard(stream: bytes, expected: list[str]) -> None:
    assert data(stream) == expected


def test_an_event_has_the_id_that_came_last_and_a_type_of_its_own() -> None:
    assert parsed(b"id: 1\nevent: x\ndata: a\n\ndata: b\n\nid: 2\ndata: c\n\nid\ndata: d\n\n") == [
        ServerEvent("1", "a", "x"), ServerEvent("1", "b"), ServerEvent("2", "c"), ServerEvent("", "d")]


def test_an_id_without_data_tells_the_place_once() -> None:
    assert parsed(b"id: 7\n\nid: 7\n\ndata: a\n\n") == [ServerEvent("7", None), ServerEvent("7", "a")]


def test_the_id_of_half_an_event_is_not_told() -> None:
    assert parsed(b"id: 7\ndata: a\n\nid: 8\ndata: b\n") == [ServerEvent("7", "a")]


def test_an_id_with_a_null_in_it_is_ignored() -> None:
    assert parsed(b"id: 7\ndata: a\n\nid: 8\x00\ndata: b\n\n") == [ServerEvent("7", "a"), ServerEvent("7", "b")]


@pytest.mark.parametrize(("value", "expected"), [
    (b"250", 250), (b"0", 0), (b"-1", None), (b"+1", None), (b"1.5", None), (b"1_0", None), (b"", None),
    ("١".encode(), None), (b"9" * 5000, None)])
def test_retry_is_a_number_of_milliseconds_or_nothing(value: bytes, expected: int | None) -> None:
    parser = Parser()
    assert not list(parser.feed(b"retry: " + value + b"\n\n"))
    assert parser.retry == expected


def test_an_event_is_given_as_soon_as_it_is_complete() -> None:
    parser = Parser()
    assert [event.data for event in parser.feed(b"data: a\r\n\r")] == ["a"]
    assert not list(parser.feed(b"\ndata: b"))
    assert [event.data for event in parser.feed(b"\n\n")] == ["b"]


def test_an_event_without_end_is_refused_and_a_stream_of_comments_is_not() -> None:
    parser = Parser(limit=1000)
    for _ in range(1000):
        assert not list(parser.feed(b": still here\n"))
    assert [event.data for event in parser.feed(b"data: " + b"x" * 900 + b"\n\n")] == ["x" * 900]
    assert [event.data for event in parser.feed(b"data: " + b"x" * 900 + b"\n\n")] == ["x" * 900]
    assert not list(parser.feed(b"x" * 990))
    with pytest.raises(TooLongError, match="1,000 bytes"):
        list(parser.feed(b"x" * 11))
    with pytest.raises(TooLongError):
        list(Parser(limit=1000).feed(b"data: 12\n" * 200))


LINES = st.sampled_from([
    b"data: a", b"data", b"data: \xc3\xa9\xf0\x9f\x98\x80", b"data: \xff", b"id: 1", b"id: 2", b"id", b"event: x", b":",
    b"retry: 1", b"", b"", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbfdata: b", b"\x00", b"data:: "])
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r", b"\r\n"]))).map(
    lambda lines: b"".join(line + end for line, end in lines)) | st.binary()


def obvious(stream: bytes) -> list[ServerEvent]:
    """The standard's algorithm as it is written there: decode the whole, strip the mark, and take line by line."""
    text = stream.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    buffer, kind, last, told, events = "", "", "", "", []
    for line in text.split("\n")[:-1]:
        field, colon, value = line.partition(":")
        value = value[1:] if value[:1] == " " else value
        if line == "":
            if buffer:
                events.append(ServerEvent(last, buffer[:-1], kind or "message"))
            elif last != told:
                events.append(ServerEvent(last, None, kind or "message"))
            buffer, kind, told = "", "", last
        elif colon and not field:
            pass
        elif field == "data":
            buffer += value + "\n"
        elif field == "event":
            kind = value
        elif field == "id" and "\0" not in value:
            last = value
    return events


@settings(max_examples=effort(300))
@given(STREAMS, st.lists(st.integers(0, 60)))
@example(b"data: a\r\n\r\n", [8, 10])
@example(b"data: \xc3\xa9\n\n", [7])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
def test_any_cut_of_the_bytes_gives_the_events_of_the_whole(stream: bytes, places: list[int]) -> None:
    edges = sorted({0, len(stream), *(place for place in places if place < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert parsed(*pieces) == obvious(stream)
    assert parsed(*(bytes([byte]) for byte in stream)) == obvious(stream)
