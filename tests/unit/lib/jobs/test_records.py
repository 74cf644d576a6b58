from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dios.lib.jobs.records import Document, Segment, blocks, plan_splits
from dios.limits import JOB_INPUTS_MAX

TEXTS = st.lists(st.text(alphabet="ab\n", max_size=40).map(str.encode), max_size=6)


def documents_of(texts: list[bytes]) -> tuple[memoryview, list[Document]]:
    """Texts put one after the other into one object."""
    documents: list[Document] = []
    whole = bytearray(b"\n")
    for number, text in enumerate(texts):
        documents.append(Document(0, len(whole), len(whole) + len(text), f"text{number}"))
        whole += text
    return memoryview(bytes(whole)), documents


def records_of(texts: list[bytes]) -> list[bytes]:
    """What a person would call the records of some texts."""
    records: list[bytes] = []
    for text in texts:
        lines = text.split(b"\n")
        records += lines[:-1] if not lines[-1] else lines
    return records


@given(TEXTS, st.integers(1, 9), st.integers(1, 50))
def test_every_record_is_in_exactly_one_split(texts: list[bytes], count: int, block_bytes: int) -> None:
    """Wherever splits and blocks are cut, their records are all records, once each and in order."""
    view, documents = documents_of(texts)
    records: list[bytes] = []
    for split in plan_splits(documents, count):
        for segment in split:
            for start, stop in blocks(view, segment, block_bytes):
                records += records_of([bytes(view[start:stop])])
    assert records == records_of(texts)


@given(TEXTS, st.integers(1, 9))
def test_splits_are_even(texts: list[bytes], count: int) -> None:
    """Splits differ by a byte or so, and together are the documents."""
    _, documents = documents_of(texts)
    splits = plan_splits(documents, count)
    sizes = [sum(segment.size for segment in split) for split in splits]
    assert len(splits) <= count
    assert sum(sizes) == sum(map(len, texts))
    if len(splits) == count:
        assert max(sizes) - min(sizes) <= 1


def test_a_block_holds_whole_records() -> None:
    """A block ends with a newline or with its document, and is longer where a record is."""
    view = memoryview(b"a\nbb\n" + b"c" * 200_000 + b"\nd")
    segment = Segment(0, 0, len(view), 0, len(view))
    cut = [bytes(view[start:stop]) for start, stop in blocks(view, segment, 3)]
    assert cut == [b"a\n", b"bb\n", b"c" * 200_000 + b"\n", b"d"]


def test_labels_go_with_their_segments() -> None:
    """Each part of a document carries the document's label."""
    splits = plan_splits([Document(0, 0, 10, "left"), Document(1, 0, 10, "right")], 3)
    assert [[segment.label for segment in split] for split in splits] == [
        ["left"],
        ["left", "right"],
        ["right"],
    ]


def test_a_split_of_many_inputs_is_cut() -> None:
    """No split has parts of more inputs than one task can be handed."""
    documents = [Document(number, 0, 3) for number in range(2 * JOB_INPUTS_MAX + 1)]
    splits = plan_splits(documents, 2)
    assert [len(split) for split in splits] == [JOB_INPUTS_MAX, 1, JOB_INPUTS_MAX, 1]
    assert sum(segment.size for split in splits for segment in split) == 3 * len(documents)
