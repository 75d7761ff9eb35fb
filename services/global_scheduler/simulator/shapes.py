"""A model as the cost model sees it: parameters by where they live, arithmetic and bytes by token."""

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

MODELS = Path(__file__).with_name("models.toml")


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention, sparse by an indexer: a query scores all tokens cheaply, then attends to the
    `selected` best (DeepSeek-V3.2)."""

    heads: int
    query_rank: int
    kv_rank: int
    rope: int
    head: int
    token_layer_bytes: int
    indexer_heads: int
    indexer_head: int
    indexer_token_layer_bytes: int
    selected: int

    def parameters(self, hidden: int) -> int:
        """Of a layer: projections of query, KV and output, and the indexer's."""
        query = hidden * self.query_rank + self.query_rank * self.heads * (self.head + self.rope)
        kv = hidden * (self.kv_rank + self.rope) + self.kv_rank * self.heads * 2 * self.head
        output = self.heads * self.head * hidden
        indexer = self.query_rank * self.indexer_heads * self.indexer_head + hidden * self.indexer_head
        return query + kv + output + indexer

    @property
    def kv_layer_bytes(self) -> int:
        return self.token_layer_bytes + self.indexer_token_layer_bytes

    @property
    def pair_flops(self) -> int:
        """Of a layer and a (query, context) pair."""
        return 2 * self.indexer_heads * self.indexer_head

    @property
    def selected_flops(self) -> int:
        """Of a layer and a (query, selected) pair: scores over latent and rope, values over latent."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope)

    @property
    def context_bytes(self) -> int:
        """Read of each token of context in a decode step, a layer."""
        return self.indexer_token_layer_bytes

    @property
    def selected_bytes(self) -> int:
        return self.token_layer_bytes


@dataclass(frozen=True)
class GroupedAttention:
    """Grouped-query attention over the whole context."""

    heads: int
    kv_heads: int
    head: int
    element_bytes: int
    selected: int = 0
    selected_flops: int = 0
    selected_bytes: int = 0

    def parameters(self, hidden: int) -> int:
        return hidden * self.head * (2 * self.heads + 2 * self.kv_heads)

    @property
    def kv_layer_bytes(self) -> int:
        return 2 * self.kv_heads * self.head * self.element_bytes

    @property
    def pair_flops(self) -> int:
        return 4 * self.heads * self.head

    @property
    def context_bytes(self) -> int:
        return self.kv_layer_bytes


@dataclass(frozen=True)
class ModelShape:
    name: str
    layers: int
    dense_layers: int  # without experts
    hidden: int
    vocabulary: int
    weight_bytes: int
    engine_gpus: int  # GPUs that share a request's attention; engines share the experts
    dense_intermediate: int
    expert_intermediate: int
    experts: int
    experts_active: int
    experts_shared: int
    attention: LatentAttention | GroupedAttention

    @property
    def expert_layers(self) -> int:
        return self.layers - self.dense_layers

    @property
    def kv_token_bytes(self) -> int:
        """KV of a token, all layers: what a Full Block (D5) holds of it."""
        return self.layers * self.attention.kv_layer_bytes

    @cached_property
    def engine_parameters(self) -> int:
        """That each engine holds and every token passes: attention, dense and shared experts, the head."""
        expert = 3 * self.hidden * self.expert_intermediate
        return (
            self.layers * self.attention.parameters(self.hidden)
            + self.dense_layers * 3 * self.hidden * self.dense_intermediate
            + self.expert_layers * self.experts_shared * expert
            + self.vocabulary * self.hidden
        )

    @cached_property
    def expert_parameters(self) -> int:
        """Of all routed experts: a lockstep group holds them once."""
        return self.expert_layers * self.experts * 3 * self.hidden * self.expert_intermediate

    @property
    def active_expert_parameters(self) -> int:
        """That one token passes."""
        return self.expert_parameters * self.experts_active // self.experts if self.experts else 0


def load_model(name: str, path: Path = MODELS) -> ModelShape:
    """Raises ValueError that names the models there are."""
    table: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
    if name not in table:
        raise ValueError(f"model {name!r} has no shape in {path.name}; there are: {', '.join(sorted(table))}")
    fields = dict(table[name])
    latent, grouped = fields.pop("latent", None), fields.pop("grouped", None)
    attention = LatentAttention(**latent) if latent else GroupedAttention(**grouped)
    return ModelShape(name=name, attention=attention, **fields)
