"""Attention over paged KV with torch's own operators: gather pages, then scaled_dot_product_attention.

Measured on 2 cores against padded matmuls and advanced indexing: index_select into a kept buffer is
the fastest gather, and treating the query heads of one KV head as query rows spares repeating K and V.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.engines.plan import Chunk, SingleGroup, StepPlan
from services.gpu_backend.layers import NoLayers, StepLayers


@dataclass
class GatherBuffer:
    """Memory for one layer's gathered keys and values, kept between steps since fresh memory is slow.

    It grows to the largest group seen.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def like(cls, pool: torch.Tensor) -> "GatherBuffer":
        empty = pool.new_empty((0, *pool.shape[3:]))
        return cls(empty, empty.clone())

    def gather(self, pool: torch.Tensor, place: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of `pages`, each [pages, 64, kv_heads, head_dim]; valid until the next call."""
        if len(pages) > len(self.keys):
            self.keys = pool.new_empty((len(pages), *pool.shape[3:]))
            self.values = torch.empty_like(self.keys)
        keys, values = self.keys[: len(pages)], self.values[: len(pages)]
        torch.index_select(pool[:, place, 0], 0, pages, out=keys)
        torch.index_select(pool[:, place, 1], 0, pages, out=values)
        return keys, values


@dataclass(frozen=True)
class _Singles:
    begin: int
    count: int
    pages: torch.Tensor  # [count * most pages]
    positions: int  # to keep of the gathered ones; all, when a mask does the rest
    mask: torch.Tensor | None  # bool[count, 1, 1, positions]


@dataclass(frozen=True)
class _Chunk:
    begin: int
    count: int
    pages: torch.Tensor
    positions: int
    mask: torch.Tensor | None  # bool[count, positions]; None: causal from position 0


class PagedAttention:
    """A model's `Attention` for one step. pool: [pages, resident layers, 2, 64, kv_heads, head_dim]; layer n has place
    n modulo their number. Waits for each layer's KV, and tells when the new one is there (D6)."""

    def __init__(
        self, pool: torch.Tensor, buffer: GatherBuffer, plan: StepPlan, layers: StepLayers | None = None
    ) -> None:
        self._pool = pool
        self._layers = layers or NoLayers()
        self._buffer = buffer
        self._write_pages = torch.from_numpy(plan.write_pages)
        self._write_offsets = torch.from_numpy(plan.write_offsets)
        self._singles = [_prepare_singles(group) for group in plan.singles]
        self._chunks = [_prepare_chunk(chunk) for chunk in plan.chunks]

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        place = layer % self._pool.shape[1]
        self._layers.begin(layer)
        self._pool[:, place, 0].index_put_((self._write_pages, self._write_offsets), key)
        self._pool[:, place, 1].index_put_((self._write_pages, self._write_offsets), value)
        found = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for group in self._singles:
            rows = slice(group.begin, group.begin + group.count)
            found[rows] = self._attend_singles(place, group, query[rows])
        for chunk in self._chunks:
            rows = slice(chunk.begin, chunk.begin + chunk.count)
            found[rows] = self._attend_chunk(place, chunk, query[rows])
        self._layers.end(layer)
        return found

    def _attend_singles(self, place: int, group: _Singles, query: torch.Tensor) -> torch.Tensor:
        kv_heads, head_dim = self._pool.shape[4:]
        keys, values = (
            part.view(group.count, -1, kv_heads, head_dim)[:, : group.positions].transpose(1, 2)
            for part in self._buffer.gather(self._pool, place, group.pages)
        )
        shared = query.reshape(group.count, kv_heads, -1, head_dim)
        found = scaled_dot_product_attention(shared, keys, values, attn_mask=group.mask)
        return found.reshape(query.shape)

    def _attend_chunk(self, place: int, chunk: _Chunk, query: torch.Tensor) -> torch.Tensor:
        kv_heads, head_dim = self._pool.shape[4:]
        keys, values = (
            part.view(1, -1, kv_heads, head_dim)[:, : chunk.positions].transpose(1, 2)
            for part in self._buffer.gather(self._pool, place, chunk.pages)
        )
        found = scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            enable_gqa=True,
        )
        return found[0].transpose(0, 1)


def _prepare_singles(group: SingleGroup) -> _Singles:
    count = len(group.lengths)
    pages = torch.from_numpy(np.ascontiguousarray(group.pages).reshape(-1))
    longest = int(group.lengths.max())
    if (group.lengths == longest).all():
        return _Singles(group.begin, count, pages, longest, None)
    gathered = group.pages.shape[1] * PAGE_TOKENS
    mask = torch.from_numpy(np.arange(gathered) < group.lengths[:, None])
    return _Singles(group.begin, count, pages, gathered, mask[:, None, None])


def _prepare_chunk(chunk: Chunk) -> _Chunk:
    positions = chunk.position + chunk.count
    mask = None
    if chunk.position:
        own = np.arange(chunk.position, positions)
        mask = torch.from_numpy(np.arange(positions) <= own[:, None])
    return _Chunk(chunk.begin, chunk.count, torch.from_numpy(chunk.pages.copy()), positions, mask)
