"""What the data plane refuses, one class a reason."""


class FabricError(Exception):
    """Base of every refusal of the data plane."""


class UnknownTransport(FabricError):
    """The descriptor names a transport that this build does not have."""


class RegionInUse(FabricError):
    """A live owner holds a region of that name."""


class NotARegion(FabricError):
    """The address leads to nothing, or to something that is no region."""


class StaleRegion(FabricError):
    """The owner ended or restarted: its descriptor's generation is no longer the region's."""


class WrongKey(FabricError):
    """The descriptor's rkey is not the region's."""


class NoRight(FabricError):
    """The region's owner lets peers do less than this."""


class OutOfBounds(FabricError, IndexError):
    """An operation reaches outside the region."""


class Unreachable(FabricError):
    """The owner does not answer: it is dead, or the network to it is down. What was under way may have happened."""


class TransportUnavailable(FabricError):
    """This machine lacks what the transport needs; the message says what."""
