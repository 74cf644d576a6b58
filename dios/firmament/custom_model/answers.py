"""The answers of a model's task, in MessagePack.

The task is hostile: types bound its answers here, and ``network.model_answers`` checks the values.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from dios.errors import InvalidError

ANSWER_BYTES_MAX: Final = 64 << 20
"""The longest answer that a coordinator reads."""
LABEL: Final = "answers"
"""The label of the stream of answers among the inputs of the task."""

TEXT_CHARS_MAX: Final = 4096

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]
_Vector: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=ANSWER_BYTES_MAX)]


class Opened(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The model was made and kept its contract."""

    name: _Text
    summary: _Text
    parameters: Annotated[dict[_Text, _Text], msgspec.Meta(max_length=64)]
    """The parameters and their defaults, as words."""


class Vectors(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """The vectors of int64 that a method returned."""

    arrays: Annotated[list[_Vector], msgspec.Meta(max_length=4)]


class Explained(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """The text that ``explain`` returned."""

    text: _Text


class Failed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """The model raised, or its answer cannot be sent."""

    reason: _Text


Answer: TypeAlias = Opened | Vectors | Explained | Failed


encode: Final = msgspec.msgpack.Encoder().encode
_answers: Final = msgspec.msgpack.Decoder(Answer)


def decode_answer(data: bytes) -> Answer:
    """Return an answer. Raise InvalidError for bytes that are none."""
    try:
        answer: Answer = _answers.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"it is no answer: {error}") from None
    return answer
