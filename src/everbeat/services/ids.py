"""New ids, ordered by time. The ids of a batch are consecutive, so that they follow from the first one."""

from __future__ import annotations

from uuid import UUID, SafeUUID

import uuid_utils.compat

from everbeat.core.protocol import MAX_SUBMITTED

_BATCH_MASK = 2 ** (MAX_SUBMITTED - 1).bit_length() - 1
_set = object.__setattr__


def new_ids(count: int) -> list[UUID]:
    return ids_from(UUID(int=uuid_utils.compat.uuid7().int & ~_BATCH_MASK), count)


def ids_from(first: UUID, count: int) -> list[UUID]:
    """Return `count` consecutive ids.

    The constructor of UUID is bypassed: its checks cost more than everything else that is done with a task of a batch.
    """
    ids = []
    for number in range(first.int, first.int + count):
        id_ = UUID.__new__(UUID)
        _set(id_, "int", number)
        _set(id_, "is_safe", SafeUUID.unknown)
        ids.append(id_)
    return ids
