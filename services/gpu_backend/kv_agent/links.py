"""Bytes over each link that a prompt's KV crosses (D1-D4), counted where they are moved.

What is held in an engine's memory crosses a link of its own, instead of the store's and, by D1, the buffer's.
"""

from enum import StrEnum


class KvLink(StrEnum):
    """From where to where. `prefill` and `decode` name the side whose memory it is; a unified engine is both."""

    STORE_PREFILL_BUFFER = "store_to_prefill_buffer"
    PREFILL_BUFFER_PAGES = "prefill_buffer_to_prefill_pages"
    STORE_DECODE_BUFFER = "store_to_decode_buffer"
    DECODE_BUFFER_PREFILL_PAGES = "decode_buffer_to_prefill_pages"
    PREFILL_PAGES_DECODE_BUFFER = "prefill_pages_to_decode_buffer"
    DECODE_BUFFER_PAGES = "decode_buffer_to_decode_pages"
    PAGES_STORE = "pages_to_store"
    HELD_PREFILL_PAGES = "held_to_prefill_pages"
    HELD_DECODE_BUFFER = "held_to_decode_buffer"
