"""What else is read from those who are not trusted, or from files that may be damaged: any bytes will do."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dios import limits
from dios.client.program import Program, decode_program
from dios.core.effects import Audit
from dios.errors import (
    DamagedError,
    DiosError,
    EndOfStreamError,
    InvalidError,
    NotExecutableError,
    NotSupportedError,
    ProtocolError,
    TimeLimitError,
    TooLargeError,
    UnreachableError,
)
from dios.host.audit.log import AuditLog, segments
from dios.host.audit.reader import read, verify
from dios.host.content.consoles import TaskConsole
from dios.host.process.last_exception import exception_line
from dios.ids import ObjectId
from dios.lib import catalogue
from dios.lib.jobs import orders
from dios.node.settings import Settings, SettingsError, load
from dios.store import schema
from dios.transport.rings.end import CLOSED_BIT
from dios.transport.rings.layout import COMMITS, COUNT, STATE
from dios.wire.nametext import fingerprint, format_name, parse_name
from dios.wire.page import PublicAttributes, read_slot
from dios.wire.types import Mode
from tests.support.host.ring_ends import RING, Ends
from tests.support.store.records import record

WORD = st.one_of(
    st.integers(0, 2**64 - 1), st.integers(0, 3 * RING), st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1])
)
CONTROL = st.tuples(WORD, WORD, WORD)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MARKS = [
    "Traceback (most recent call last):",
    "  + Exception Group ",
    "  | ",
    "ValueError: x",
    "\x1b[2J",
    "\r\n",
    "\0",
]


def scribble(ends: Ends, end: Mode, control: tuple[int, int, int]) -> None:
    """Write a hostile end's control words, as only that end can."""
    with ends.ring._pages[end].cast("Q") as words:
        words[COUNT], words[STATE], words[COMMITS] = control


COSTS_THE_STREAM = (ProtocolError, TimeLimitError, EndOfStreamError, UnreachableError)


# -- streams: the other end's counters and bytes ------------------------------------------------------
@SLOW
@given(st.lists(CONTROL, min_size=1, max_size=4), st.binary(max_size=64))
def test_a_reader_survives_what_a_writer_claims(controls: list[tuple[int, int, int]], data: bytes) -> None:
    """Counters that jump and lengths that lie cost the stream, and never reach beyond the ring."""
    ends = Ends()
    try:
        ends.writer._own_map[limits.KIB * 4 : limits.KIB * 4 + len(data)] = data
        for count, state, commits in controls:
            # Closed, for a long message that has begun is waited for as long as its writer is there.
            control = (count, state | CLOSED_BIT, commits)
            scribble(ends, Mode.WRITE, control)
            with contextlib.suppress(*COSTS_THE_STREAM):
                assert len(ends.reader.receive(timeout_s=0)) <= RING
            with contextlib.suppress(*COSTS_THE_STREAM, TooLargeError):
                assert ends.reader.receive_into(bytearray(100), timeout_s=0) <= 100
            with contextlib.suppress(*COSTS_THE_STREAM):
                assert sum(map(len, ends.reader.receive_many(timeout_s=0))) <= RING
            assert ends.ring.commits(Mode.WRITE) == control[2]
            assert ends.ring.is_closed(Mode.WRITE)
    finally:
        ends.close()


@SLOW
@given(st.lists(CONTROL, min_size=1, max_size=4))
def test_a_writer_survives_what_a_reader_claims(controls: list[tuple[int, int, int]]) -> None:
    """A reader that claims to have read what was never written costs the stream, not the writer."""
    ends = Ends()
    try:
        for control in controls:
            scribble(ends, Mode.READ, control)
            with contextlib.suppress(ProtocolError, TimeLimitError, DiosError):
                ends.writer.send(b"x" * 100, timeout_s=0)
    finally:
        ends.close()


# -- the public page, names, consoles, last words -----------------------------------------------------
@SLOW
@given(st.binary(min_size=limits.PUBLIC_SLOT_BYTES, max_size=limits.PUBLIC_SLOT_BYTES), st.booleans())
def test_any_slot_is_read_or_torn(data: bytes, even: bool) -> None:  # noqa: FBT001 - drawn
    """A slot of any bytes gives attributes, or says that it is torn; it never blocks for good."""
    sequence = struct.pack("@I", data[0] & 0xFE if even else data[0])
    with memoryview(sequence + data[4:]) as view:
        try:
            assert isinstance(read_slot(view, 0), PublicAttributes)
        except UnreachableError:
            assert not even


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80), st.text("dios1qpzry9x8gf2tvdw0s3jn54khce6mua7lDIO\u0130\u017f ", max_size=70)
    )
)
@example("dio\u017f1" + "q" * 58)
def test_any_text_is_a_name_or_refused_without_repeating_it(text: str) -> None:
    """What is no name is refused, in words that repeat nothing of it."""
    refusal = ""
    try:
        name = parse_name(text)
    except InvalidError as refused:
        refusal = refused.message
    else:
        assert format_name(name) == text.strip().lower()
    # A secret that was mistyped is a secret still.
    assert len(text) < 12 or text not in refusal


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(5, 62), st.characters(codec="utf-8"))
def test_a_mistyped_name_is_never_another(name: bytes, place: int, typed: str) -> None:
    """One wrong character in a name makes it no name."""
    text = format_name(name)
    wrong = text[:place] + typed + text[place + 1 :]
    if wrong.lower() == text:
        assert fingerprint(parse_name(wrong)) == fingerprint(name)
    else:
        with pytest.raises(InvalidError):
            parse_name(wrong)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MARKS), st.text(max_size=30)), max_size=12))
def test_any_last_words_tell_one_line_or_none(parts: list[str]) -> None:
    """What a program prints, however it imitates a traceback, gives one line of its own text or nothing."""
    text = "\n".join(parts)
    told = exception_line(text)
    assert told in text
    assert len(told.splitlines()) <= 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.binary(max_size=300), max_size=8),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 9),
)
def test_any_console_is_read_anywhere(parts: list[bytes], position: int, length: int, times: int) -> None:
    """Any bytes at any position: a console gives what it keeps of the range, and never more."""
    console = TaskConsole()
    for part in parts * times:
        console.append(part * 40)
    whole = b"".join(part * 40 for part in parts * times)
    kept = whole[-limits.CONSOLE_TAIL_BYTES :]
    for start in (position, position % (len(whole) + 1)):
        got = console.read(start, length)
        assert got in kept
        assert got == whole[max(start, len(whole) - len(kept)) : start + length]
    assert len(console.last_lines()) <= limits.LAST_LINES_KEPT
    assert isinstance(console.text(), str)


# -- files --------------------------------------------------------------------------------------------
@SLOW
@given(st.data())
def test_a_changed_audit_log_is_noticed_and_never_breaks_its_reader(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes changed, cut or added anywhere: the verdict is not whole, or the end is merely torn."""
    folder = tmp_path_factory.mktemp("audit")
    log = AuditLog(folder)
    for number in range(6):
        log.append(Audit(number, "create", "ok", "uid:1", "aa", f"{number:012x}", ""))
    log.close()
    head = log.head
    (path,) = segments(folder)
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    changed = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    path.write_bytes(changed)
    verdict = verify(folder, anchor=head)
    # What is added behind the last record may be one that is being written.
    assert not verdict.ok or changed.startswith(whole)
    assert verdict.ok or changed != whole
    with contextlib.suppress(DamagedError):
        list(read(folder))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_row_of_the_store_is_damage(data: st.DataObject) -> None:
    """A row with any bytes changed is never decoded as something else."""
    row = schema.ObjectRow(record(7), schema.inline_payload(b"hello"))
    stored = schema.encode_row(row)
    start = data.draw(st.integers(0, len(stored)))
    end = data.draw(st.integers(start, len(stored)))
    changed = stored[:start] + data.draw(st.binary(max_size=40)) + stored[end:]
    if changed.startswith(stored):
        assert schema.decode_row(ObjectId(7), changed) == row
        return
    with pytest.raises(DamagedError):
        schema.decode_row(ObjectId(7), changed)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=12))
def test_any_schema_version_and_key_are_known_or_refused(data: bytes) -> None:
    """A key or a version of any bytes is one, or a sentence."""
    with contextlib.suppress(DamagedError):
        assert schema.key_of(schema.object_of(data)) == data
    with contextlib.suppress(DamagedError, NotSupportedError):
        assert schema.decode_schema(data) <= schema.SCHEMA_VERSION


LINE = st.builds(
    "{} = {}".format,
    st.one_of(
        st.sampled_from(["socket", "tasks_max", "map_bytes", "allowed_uids", "mode", "record"]),
        st.text(max_size=9),
    ),
    st.one_of(
        st.sampled_from(["1", "-1", "1e999", "nan", '"x"', "[1, -2]", "[[]]", "{}", "1979-05-27", '"9 GiB"']),
        st.text(max_size=9),
    ),
)


@SLOW
@given(
    st.one_of(
        st.binary(max_size=200), st.lists(LINE, max_size=4).map(lambda lines: "\n".join(lines).encode())
    )
)
def test_any_settings_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    """A settings file of any bytes gives settings, or an error that names it."""
    folder: Path = tmp_path_factory.mktemp("settings")
    file = folder / "node.toml"
    file.write_bytes(text)
    with contextlib.suppress(SettingsError):
        assert isinstance(load(folder / "data", config=file), Settings)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=100).map(lambda body: b"\x83" + body)))
@example(b"\x81\xa4main" + b"\x91" * 100_000)
@example(b"\x81\xa7modules" + b"\x81\xa1a" * 50_000)
def test_any_program_is_one_or_refused(data: bytes) -> None:
    """An executable object of any bytes is a program's source, or none."""
    with contextlib.suppress(NotExecutableError):
        assert isinstance(decode_program(data), Program)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100))
def test_any_report_order_and_catalogue_is_one_or_refused(data: bytes) -> None:
    """What a task reports, what a catalogue's object holds: a value, or an error of ours."""
    for decode, refused in (
        (orders.decode_report, ProtocolError),
        (orders.decode_order, ProtocolError),
        (catalogue.decode, DamagedError),
    ):
        with contextlib.suppress(refused):
            decode(data)


def test_a_catalogue_with_broken_text_is_damaged() -> None:
    """Text that is no UTF-8 is damage like any other, not an exception of the decoder's own."""
    entry = catalogue.CatalogueEntry("text", bytes(32), 1, 1)
    with pytest.raises(DamagedError):
        catalogue.decode(catalogue.encode([entry]).replace(b"text", b"\xff\xfe\xfd\xfc"))


def test_an_audit_record_with_broken_text_is_damaged(tmp_path: Path) -> None:
    """A record whose text was changed into no UTF-8 is reported as damage, by its place."""
    with_text(tmp_path)
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"create", b"\xff\xfeeate"))
    with pytest.raises(DamagedError, match="record 0 at byte"):
        list(read(tmp_path))


def with_text(folder: Path) -> None:
    """A closed log of one record."""
    log = AuditLog(folder)
    log.append(Audit(1, "create", "ok", "uid:1", "aa", "bb", ""))
    log.close()
