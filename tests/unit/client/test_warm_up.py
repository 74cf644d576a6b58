"""What a waiting child does for practice."""

from __future__ import annotations

import linecache
import sys

from dios.client.program import decode_program
from dios.client.warm_up import rehearse


def test_rehearsing_leaves_the_interpreter_as_it_was() -> None:
    """After a rehearsal modules, finders, arguments and cached source lines are what they were."""
    before = (set(sys.modules), list(sys.meta_path), list(sys.argv), set(linecache.cache))
    rehearse()
    assert (set(sys.modules), list(sys.meta_path), list(sys.argv), set(linecache.cache)) == before


def test_a_program_may_begin_with_a_byte_order_mark() -> None:
    """The mark that some editors put before UTF-8 text is no part of the program."""
    assert decode_program(b"\xef\xbb\xbfx = 1").main == "x = 1"
