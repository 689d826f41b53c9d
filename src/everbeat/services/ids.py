"""New ids: ordered by time, and those of a batch one after the other, so that they follow from the first."""

from __future__ import annotations

from uuid import UUID, SafeUUID

import uuid_utils.compat

from everbeat.core.protocol import MAX_SUBMITTED

_BATCH_MASK = 2 ** (MAX_SUBMITTED - 1).bit_length() - 1
_set = object.__setattr__


def new_ids(count: int) -> list[UUID]:
    return ids_from(UUID(int=uuid_utils.compat.uuid7().int & ~_BATCH_MASK), count)


def ids_from(first: UUID, count: int) -> list[UUID]:
    """Made without the checks of UUID's constructor, which cost more than all else that is done with a task of a batch."""
    ids = []
    for number in range(first.int, first.int + count):
        id_ = UUID.__new__(UUID)
        _set(id_, "int", number)
        _set(id_, "is_safe", SafeUUID.unknown)
        ids.append(id_)
    return ids
