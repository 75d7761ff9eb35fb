"""A cluster: model, nodes, and which engines step together."""

from dataclasses import dataclass, replace
from typing import Protocol

from services.global_scheduler._simulator import Config
from services.global_scheduler.simulator.costs import decode_cost, kv_capacity_tokens, prefill_cost
from services.global_scheduler.simulator.hardware import Hardware
from services.global_scheduler.simulator.shapes import ModelShape


class Machines(Protocol):
    """What is simulated: prefill nodes first, then decode nodes, all with as many engines."""

    @property
    def name(self) -> str: ...

    @property
    def model_name(self) -> str: ...

    @property
    def prefill_nodes(self) -> int: ...

    @property
    def nodes(self) -> int: ...

    @property
    def engines_per_node(self) -> int: ...

    def config(self) -> Config:
        """For the event core; the system's part (layerwise, free_io) is left at its default."""
        ...


@dataclass(frozen=True)
class Cluster:
    """P prefill and D decode nodes. Experts are spread over `prefill_group` or `decode_group` nodes, whose engines step
    together; a last group may be smaller."""

    model: ModelShape
    hardware: Hardware
    prefill_nodes: int
    decode_nodes: int
    prefill_group: int = 1
    decode_group: int = 1

    def __post_init__(self) -> None:
        for name in ("prefill_nodes", "decode_nodes", "prefill_group", "decode_group"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.hardware.gpus % self.model.engine_gpus:
            raise ValueError(f"{self.hardware.gpus} GPUs a node do not divide into engines of {self.model.engine_gpus}")

    @property
    def name(self) -> str:
        return f"{self.prefill_nodes}P{self.decode_nodes}D"

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def nodes(self) -> int:
        return self.prefill_nodes + self.decode_nodes

    @property
    def gpus(self) -> int:
        return self.nodes * self.hardware.gpus

    @property
    def engines_per_node(self) -> int:
        return self.hardware.gpus // self.model.engine_gpus

    @property
    def engines(self) -> int:
        return self.nodes * self.engines_per_node

    def scaled(self, factor: int) -> "Cluster":
        """So many of this cluster behind one scheduler; groups stay as large as they are."""
        return replace(self, prefill_nodes=self.prefill_nodes * factor, decode_nodes=self.decode_nodes * factor)

    def config(self) -> Config:
        model, hardware = self.model, self.hardware
        engines = self.engines_per_node
        # Dense engines share nothing, so each steps alone.
        prefill_group = engines * min(self.prefill_group, self.prefill_nodes) if model.experts else 1
        decode_group = engines * min(self.decode_group, self.decode_nodes) if model.experts else 1
        config = Config()
        config.prefill_nodes, config.decode_nodes = self.prefill_nodes, self.decode_nodes
        config.engines_per_node = engines
        config.prefill_group, config.decode_group = prefill_group, decode_group
        config.storage_read = config.storage_write = hardware.storage_nics * hardware.nic_bytes_per_s
        config.dram = hardware.dram_bytes_per_s
        config.compute_nic = model.engine_gpus * hardware.nic_bytes_per_s
        config.layers = model.layers
        config.kv_bytes = model.kv_token_bytes
        config.prefill_kv_tokens = kv_capacity_tokens(model, hardware, prefill_group)
        config.decode_kv_tokens = kv_capacity_tokens(model, hardware, decode_group)
        config.prefill = prefill_cost(model, hardware, prefill_group)
        config.decode = decode_cost(model, hardware, decode_group)
        return config
