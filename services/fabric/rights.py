"""What a peer may do to a region: the owner says so when it makes the region, and the descriptor carries it."""

import enum
from collections.abc import Sequence

from services.fabric.errors import NoRight
from services.fabric.operations import CompareSwap, FetchAdd, Operation, Read, Write


class Rights(enum.IntFlag):
    """Bits of RegionDescriptor.rights. ATOMIC is for swaps and adds, which need no other."""

    READ = 1
    WRITE = 2
    ATOMIC = 4
    ALL = 7


_NEEDED: dict[type, Rights] = {
    Read: Rights.READ,
    Write: Rights.WRITE,
    CompareSwap: Rights.ATOMIC,
    FetchAdd: Rights.ATOMIC,
}


def permit(region: str, held: int, needed: Rights) -> None:
    """Raises NoRight unless `held` holds `needed`. Numbers of Python's are quicker than its flags."""
    if held & needed.value != needed.value:
        missing = Rights(needed.value & ~held)
        raise NoRight(f"region {region}: its owner gives no right to {_names(missing)}")


def permit_all(region: str, held: int, operations: Sequence[Operation]) -> None:
    """As permit(), for each of a batch."""
    if held == Rights.ALL.value:
        return
    for operation in operations:
        permit(region, held, _NEEDED[type(operation)])


def too_many(region: str, claimed: int, given: int) -> NoRight:
    """What is raised for a descriptor that says more than the region's owner does."""
    extra = Rights(claimed & ~given & Rights.ALL)
    return NoRight(f"region {region}: its descriptor claims {_names(extra)}, which its owner does not give")


def _names(rights: Rights) -> str:
    return " and ".join(right.name.lower() for right in rights if right.name) or "what it claims"
