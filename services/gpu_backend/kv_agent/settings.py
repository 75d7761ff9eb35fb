"""How a KV agent is set: deadlines, bounds, how often it looks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Raises ValueError where a value can't be."""

    load_deadline_s: float = 3.0
    """From a load's order to its answer, at most; what is not there by then is computed."""
    layers_s: float = 3.0
    """From the beginning of a hit's way into pages by layers to its last layer; a step may wait for that."""
    read_timeout_s: float = 1.5
    """Of one read of a batch, and of a lookup. When it is missed the store counts as away."""
    load_buffer_bytes: int = 64 << 20
    """Registered memory that the store writes to, shared by the load workers; at least a block each."""
    load_workers: int = 2
    """Loads under way at once."""
    store_patience_s: float = 1.0
    """A page waits so long for room in the store's buffer, at most; then its block is dropped."""
    begin_timeout_s: float = 1.0
    """Of the call that asks for places. When it is missed the store counts as away."""
    commit_timeout_s: float = 10.0
    """Of the call that makes blocks durable; no page is held meanwhile."""
    batch_blocks: int = 8
    """Blocks that are begun and committed in one call."""
    batches: int = 4
    """Batches begun and not yet committed, at most."""
    receive_buffer_bytes: int = 256 << 20
    """Memory for prompts that are prefilled elsewhere, until their pages are filled (the DE buffer of D2)."""
    receive_on_device: bool = False
    """That memory is the GPU's, where the pages lie there: for peers of the machine, which copy from GPU to GPU."""
    fill_bytes_s: int = 0
    """Most at which prompts get from there into pages; 0: as fast as it goes."""
    held_bytes: int = 0
    """Memory for blocks that were just loaded or offered, so that they need not be read again; 0: none is held."""
    send_workers: int = 2
    """Hand-overs under way at once, on the prefill side."""
    transfer_s: float = 60.0
    """From the opening of a hand-over to its last byte, at most; then it is given up on both sides."""
    peer_wait_s: float = 5.0
    """For the other side of a hand-over to be heard of."""
    retry_s: float = 1.0
    """A store that was away is left alone for so long; meanwhile loads are answered with 0 and stores dropped."""
    busy_poll_s: float = 0.005
    """Between two looks for orders while a request is known."""
    idle_poll_s: float = 0.05
    """Between two looks when there was nothing for long."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0 and name not in ("held_bytes", "receive_on_device", "fill_bytes_s"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
