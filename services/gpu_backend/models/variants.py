"""The decoders of Llama's kind, by name: what each adds to Llama, and how GGUF calls its tensors."""

from dataclasses import dataclass

from services.gpu_backend.models.gguf_loader import GgufNames

ROPE_FACTORS = "rope_freqs.weight"  # only in GGUF: Llama 3's scaling, ready made

_LAYER = "model.layers.{i}."
_QUERY, _KEY, _VALUE = (f"{_LAYER}self_attn.{part}_proj" for part in "qkv")
_COMMON = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    f"{_LAYER}input_layernorm.weight": "blk.{i}.attn_norm.weight",
    f"{_LAYER}self_attn.o_proj.weight": "blk.{i}.attn_output.weight",
    f"{_LAYER}post_attention_layernorm.weight": "blk.{i}.ffn_norm.weight",
    f"{_LAYER}mlp.down_proj.weight": "blk.{i}.ffn_down.weight",
}
_APART = _COMMON | {
    f"{_QUERY}.weight": "blk.{i}.attn_q.weight",
    f"{_KEY}.weight": "blk.{i}.attn_k.weight",
    f"{_VALUE}.weight": "blk.{i}.attn_v.weight",
    f"{_LAYER}mlp.gate_proj.weight": "blk.{i}.ffn_gate.weight",
    f"{_LAYER}mlp.up_proj.weight": "blk.{i}.ffn_up.weight",
}
_BIASES = {
    f"{_QUERY}.bias": "blk.{i}.attn_q.bias",
    f"{_KEY}.bias": "blk.{i}.attn_k.bias",
    f"{_VALUE}.bias": "blk.{i}.attn_v.bias",
}
_NORMS = {
    f"{_LAYER}self_attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    f"{_LAYER}self_attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
}
_FUSED = {
    f"{_LAYER}self_attn.qkv_proj.weight": "blk.{i}.attn_qkv.weight",
    f"{_LAYER}mlp.gate_up_proj.weight": "blk.{i}.ffn_up.weight",
}


@dataclass(frozen=True)
class Variant:
    """How an architecture differs from Llama. `fused` is about files only: what Llama's have apart is one tensor."""

    gguf: GgufNames
    qkv_bias: bool = False
    qk_norm: bool = False
    """Each head of queries and keys is normed, before it is rotated."""
    fused: bool = False


VARIANTS = {
    "llama": Variant(
        GgufNames(_APART | {ROPE_FACTORS: ROPE_FACTORS}, frozenset({f"{_QUERY}.weight", f"{_KEY}.weight"}))
    ),
    "qwen2": Variant(GgufNames(_APART | _BIASES), qkv_bias=True),
    "qwen3": Variant(GgufNames(_APART | _NORMS), qk_norm=True),
    "phi3": Variant(GgufNames(_COMMON | _FUSED), fused=True),
}
"""By GGUF's general.architecture, which is also HuggingFace's model_type."""
