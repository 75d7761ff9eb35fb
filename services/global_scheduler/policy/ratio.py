"""Which ratios of prefill to decode nodes keep the second path free of bottlenecks: the closed form (D14).

Every storage NIC reads at full speed, s B a node, evenly over the node's g engines. Then each pair of a prefill and a
decode engine carries T_p = s B / (D g^2) read on the prefill side and T_c = s B / (P g^2) read on the decode side
(D1, D2), and everything to or from a GPU passes the GPU's compute NIC (D7). In units of s B / g, an engine's NIC
carries, with P and D nodes:

    prefill, out of memory   1 own reads to its HBM, 1 hits on to decode engines
    prefill, into memory     1 own reads to its HBM, D/P from decode engines
    decode, out of memory    1 own reads to prefill engines, 1 + P/D from its buffer to its HBM
    decode, into memory      P/D from prefill engines, 1 + P/D from its buffer to its HBM

and a node's DRAM, in units of s B, 2 on the prefill side (in from storage, out), 3 + 2 P/D on the decode side (in from
storage, out to prefill engines, in from them, out to HBM). What misses add, and what decoding persists, is left out.
"""

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One machine, prefill and decode alike. Bandwidths in any one unit, such as bytes a second."""

    gpus: int  # g, each with a compute NIC
    storage_nics: int  # s
    memory_bandwidth: float  # M, of the DRAM, both directions together
    nic_bandwidth: float  # B, of any NIC, each direction

    def __post_init__(self) -> None:
        for name in ("gpus", "storage_nics", "memory_bandwidth", "nic_bandwidth"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")

    @property
    def storage_bandwidth(self) -> Fraction:
        """s B."""
        return self.storage_nics * Fraction(self.nic_bandwidth)


class Link(Enum):
    PREFILL_NIC_OUT = "compute NICs of prefill nodes, out of memory"
    PREFILL_NIC_IN = "compute NICs of prefill nodes, into memory"
    DECODE_NIC_OUT = "compute NICs of decode nodes, out of memory"
    DECODE_NIC_IN = "compute NICs of decode nodes, into memory"
    PREFILL_DRAM = "DRAM of prefill nodes"
    DECODE_DRAM = "DRAM of decode nodes"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ratios P/D at which a link carries no more than it can: `low` to `high`; None: no such bound. `never`: the
    link is too slow at any ratio."""

    link: Link
    low: Fraction | None = None
    high: Fraction | None = None
    never: bool = False

    def allow(self, ratio: Fraction) -> bool:
        if self.never or (self.low is not None and ratio < self.low):
            return False
        return self.high is None or ratio <= self.high


def bounds(node: NodeShape) -> list[Bounds]:
    """What each link asks of P/D."""
    g, s = node.gpus, node.storage_nics
    spare = Fraction(node.memory_bandwidth) / node.storage_bandwidth
    return [
        Bounds(Link.PREFILL_NIC_OUT, never=2 * s > g),
        Bounds(Link.PREFILL_NIC_IN, low=Fraction(s, g - s)) if g > s else Bounds(Link.PREFILL_NIC_IN, never=True),
        Bounds(Link.DECODE_NIC_OUT, high=Fraction(g - 2 * s, s)),
        Bounds(Link.DECODE_NIC_IN, high=Fraction(g - s, 2 * s)),
        Bounds(Link.PREFILL_DRAM, never=spare < 2),
        Bounds(Link.DECODE_DRAM, high=(spare - 3) / 2),
    ]


@dataclass(frozen=True, slots=True)
class BottleneckFree:
    """s/(g-s) <= P/D <= min{(g-2s)/s, (g-s)/2s, (M/(Bs)-3)/2}, and the links that set the two ends."""

    low: Fraction
    high: Fraction
    low_link: Link
    high_link: Link


def bottleneck_free(node: NodeShape) -> BottleneckFree | None:
    """None if no ratio is free of bottlenecks; `bounds` says why."""
    asked = bounds(node)
    if any(each.never for each in asked):
        return None
    low, low_link = max(((each.low, each.link) for each in asked if each.low is not None), key=lambda pair: pair[0])
    high, high_link = min(((each.high, each.link) for each in asked if each.high is not None), key=lambda pair: pair[0])
    return BottleneckFree(low, high, low_link, high_link) if low <= high else None


def pair_rates(node: NodeShape, prefill_nodes: int, decode_nodes: int) -> tuple[Fraction, Fraction]:
    """T_p and T_c: what one pair of engines carries of the reads on the prefill and on the decode side."""
    engines = node.gpus**2
    return node.storage_bandwidth / (decode_nodes * engines), node.storage_bandwidth / (prefill_nodes * engines)


def loads(node: NodeShape, prefill_nodes: int, decode_nodes: int) -> dict[Link, Fraction]:
    """Each link's load over what it can carry, when all storage NICs read at full speed; above 1: a bottleneck."""
    t_p, t_c = pair_rates(node, prefill_nodes, decode_nodes)
    nic, memory = Fraction(node.nic_bandwidth), Fraction(node.memory_bandwidth)
    prefill_engines, decode_engines = prefill_nodes * node.gpus, decode_nodes * node.gpus
    own = node.storage_bandwidth / node.gpus  # an engine's share of its node's reads
    from_prefill, from_decode = prefill_engines * t_p, decode_engines * t_c  # into one engine of the other side
    to_hbm = from_prefill + own  # a decode engine's buffer holds whole prompts, whoever read them
    return {
        Link.PREFILL_NIC_OUT: (own + decode_engines * t_p) / nic,
        Link.PREFILL_NIC_IN: (own + from_decode) / nic,
        Link.DECODE_NIC_OUT: (prefill_engines * t_c + to_hbm) / nic,
        Link.DECODE_NIC_IN: (from_prefill + to_hbm) / nic,
        Link.PREFILL_DRAM: 2 * node.storage_bandwidth / memory,
        Link.DECODE_DRAM: node.gpus * (2 * own + from_prefill + to_hbm) / memory,
    }
