"""A step's tokens taken from the step before, on the GPU: so that it can be queued before those are known."""

import torch
import triton
import triton.language as tl

from services.gpu_backend.engines.cuda.own_memory import OwnMemory, sources_offset


@triton.jit(do_not_specialize=["count"])
def _feed(tokens, out_tokens, sources, count, ROWS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    source = tl.load(sources + rows, rows < count, -1)
    token = tl.load(out_tokens + source, source >= 0, 0)
    tl.store(tokens + rows, token, source >= 0)


def feed_tokens(own: OwnMemory, count: int) -> None:
    """tokens[i] = out_tokens[sources[i]] for the first `count` rows, where there is a source."""
    at, whole = own.memory, own.device_bytes

    def words(offset: int, length: int) -> torch.Tensor:
        return whole[offset : offset + 4 * length].view(torch.int32)

    tokens, out_tokens = words(at.tokens_offset, at.lanes), words(at.out_tokens_offset, at.lanes)
    sources = words(sources_offset(at), at.lanes)
    _feed[(1,)](tokens, out_tokens, sources, count, ROWS=triton.next_power_of_2(at.lanes))
