"""Triton kernels between the GEMMs of a layer, for steps whose GEMMs are cuBLAS's."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from services.gpu_backend.engines.cuda.step_kernels import PAGE


@triton.jit
def rms_norm(hidden, weight, out, width, epsilon, WIDTH: tl.constexpr, OVERLAP: tl.constexpr):
    """Grid: rows. OVERLAP here and below: launched before the kernels whose results it needs have ended."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    columns = tl.arange(0, WIDTH)
    within = columns < width
    at = tl.program_id(0).to(tl.int64) * width + columns
    values = tl.load(hidden + at, within, 0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values) / width + epsilon)
    weights = tl.load(weight + columns, within, 0.0).to(tl.float32)
    tl.store(out + at, (values * scale * weights).to(out.dtype.element_ty), within)


@triton.jit
def add_bias(qkv, bias, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """qkv[rows, width] += bias[width], in place. Grid: (rows, blocks of width)."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = columns < width
    at = qkv + tl.program_id(0).to(tl.int64) * width + columns
    values = tl.load(at, within, 0.0).to(tl.float32) + tl.load(bias + columns, within, 0.0).to(tl.float32)
    tl.store(at, values.to(qkv.dtype.element_ty), within)


@triton.jit
def norm_heads(
    qkv, query_norm, key_norm, epsilon,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, NORMED: tl.constexpr, DIM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """RMSNorm of each head of queries and keys, in place. Grid: rows.

    NORMED: a power of two, at least HEADS + KV_HEADS. DIM: a power of two.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    heads = tl.arange(0, NORMED)[:, None]
    columns = tl.arange(0, DIM)[None, :]
    within = (heads < HEADS + KV_HEADS) & (columns < DIM)
    at = qkv + tl.program_id(0).to(tl.int64) * (HEADS + 2 * KV_HEADS) * DIM + heads * DIM + columns
    values = tl.load(at, within, 0.0).to(tl.float32)
    scales = 1.0 / tl.sqrt(tl.sum(values * values, 1) / DIM + epsilon)
    queries, keys = tl.load(query_norm + columns).to(tl.float32), tl.load(key_norm + columns).to(tl.float32)
    weights = tl.where(heads < HEADS, queries, keys)
    tl.store(at, (values * scales[:, None] * weights).to(qkv.dtype.element_ty), within)


@triton.jit
def swiglu(gate_up, out, width, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """out[rows, width] = silu(gate) * up of gate_up[rows, 2 width]. Grid: (rows, blocks of width)."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    within = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, within, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, within, 0.0).to(tl.float32)
    tl.store(out + row * width + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), within)


@triton.jit
def rotate_and_keep(
    qkv, rotations, positions, lanes, first_single, block_tables, pool, lane_pages, page_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, TURNED: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr,
    SINGLES_APART: tl.constexpr,
):  # fmt: skip
    """Turns queries and keys of a prefill step by their positions, in place, and writes K and V to pages.

    Grid: rows. TURNED and KV are powers of two, at least HEADS + KV_HEADS and KV_HEADS. `pool` points at
    the layer; rotations is float32[positions, 2, HALF]: cosines and sines. SINGLES_APART: without the rows from
    first_single[0] on, which are attend_decode's.
    """
    row = tl.program_id(0)
    position = tl.load(positions + row)
    if SINGLES_APART:
        position = tl.where(row < tl.load(first_single), position, -1)
    if position < 0:
        return
    DIM: tl.constexpr = 2 * HALF
    heads = tl.arange(0, TURNED)[:, None]
    pairs = tl.arange(0, HALF)[None, :]
    turned = (heads < HEADS + KV_HEADS) & (pairs < HALF)
    at = qkv + row.to(tl.int64) * (HEADS + 2 * KV_HEADS) * DIM
    first = tl.load(at + heads * DIM + pairs, turned, 0.0).to(tl.float32)
    second = tl.load(at + heads * DIM + HALF + pairs, turned, 0.0).to(tl.float32)
    turn = rotations + position.to(tl.int64) * DIM
    cos, sin = tl.load(turn + pairs), tl.load(turn + HALF + pairs)
    low = (first * cos - second * sin).to(qkv.dtype.element_ty)
    high = (second * cos + first * sin).to(qkv.dtype.element_ty)
    queries = turned & (heads < HEADS)
    tl.store(at + heads * DIM + pairs, low, queries)
    tl.store(at + heads * DIM + HALF + pairs, high, queries)

    lane = tl.load(lanes + row)
    page = tl.load(block_tables + lane.to(tl.int64) * lane_pages + position // PAGE)
    keys = pool + page.to(tl.int64) * page_stride + (position % PAGE) * KV_HEADS * DIM
    kept = turned & (heads >= HEADS)
    tl.store(keys + (heads - HEADS) * DIM + pairs, low, kept)
    tl.store(keys + (heads - HEADS) * DIM + HALF + pairs, high, kept)
    kv = tl.arange(0, KV)[:, None]
    columns = tl.arange(0, DIM)[None, :]
    real = (kv < KV_HEADS) & (columns < DIM)
    values = tl.load(at + (HEADS + KV_HEADS + kv) * DIM + columns, real, 0.0)
    tl.store(keys + PAGE * KV_HEADS * DIM + kv * DIM + columns, values, real)
