"""Stands in for a network card: front ends see a ring in host memory, the scheduler one in the GPU's (B7).

A thread copies what either side has changed to the other, in the order in which the card would: what a word
announces before the word, words before doorbells. Each round takes some tens of microseconds, so this is for
tests and for machines without such a card, not for speed.
"""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import LeaseState, SlotState
from services.fabric.ring.layout import HEADER, LEASE, RECORD, REPORT, RingGeometry
from services.gpu_backend.device import driver
from services.gpu_backend.device.driver import Device, MappedMemory, RegisteredMemory, Stream
from services.gpu_backend.device.ring_memory import DeviceRing

_PENDING = (SlotState.PREFILL_PENDING, SlotState.KV_PENDING)
_TOKENS_AT = np.uint64(32)
_GENERATION = np.uint64(0xFFFFFF00)
_STATE = np.uint64(15)


class RingRelay:
    """Between `start` and `stop`, which lie inside the scheduler's own. The ring stays the caller's."""

    def __init__(self, ring: DeviceRing, geometry: RingGeometry, device: Device) -> None:
        self._ring, self._device, self._at = ring, device, geometry.fields()
        self._registered = RegisteredMemory(ring.host_view)  # so that copies go straight to it
        self._stream = Stream()
        host, slots = ring.host_view, geometry.slots
        self._span = self._at["words_offset"] + 8 * slots  # header and words: one copy
        self._mirror = MappedMemory(self._span)
        self._snapshot = MappedMemory(self._span)
        self._header, self._words = self._views(host, slots)
        self._device_header, self._device_words = self._views(self._mirror.view, slots)
        self._cancels = host[self._at["cancels_offset"] :][: 4 * slots].view(np.uint32)
        self._records: Any = host[self._at["records_offset"] :][: RECORD.itemsize * slots].view(RECORD)
        self._known = self._words.copy()  # what both sides have
        self._known_cancels = self._cancels.copy()
        self._known_bells = self._header["doorbells"].copy()
        self._known_leases = self._leases(host).view(np.uint8).copy()
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ring-relay", daemon=True)

    def _views(self, memory: NDArray[np.uint8], slots: int) -> tuple[Any, NDArray[np.uint64]]:
        words = memory[self._at["words_offset"] :][: 8 * slots].view(np.uint64)
        return memory[: HEADER.itemsize].view(HEADER)[0], words

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After the scheduler's end: the last words are copied. Raises what ended the thread early."""
        self._ending.set()
        self._thread.join()
        self._mirror.close()
        self._snapshot.close()
        self._registered.close()
        self._stream.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._device.use()
            while not self._ending.is_set():
                self._down()
                self._up()
                self._ending.wait(20e-6)
            self._down()
        except BaseException as failure:
            self._failure = failure

    # --- from the GPU ---

    def _down(self) -> None:
        driver.fetch_rows(self._ring.address, 0, self._mirror.view[None], self._stream)
        self._stream.wait()
        changed = np.flatnonzero(self._device_words != self._known)
        words = self._device_words[changed]
        for slot, word in zip(changed.tolist(), words, strict=True):
            self._fetch_announced(slot, self._known[slot], word)
        self._stream.wait()
        offsets = (self._at["words_offset"] + 8 * changed).astype(np.uint64)
        _ring.store_release_many(self._ring.host_view, offsets, words)
        self._known[changed] = words
        for name in ("heartbeat", "engine_state"):
            self._header[name] = self._device_header[name]
        self._free_leases()

    def _fetch_announced(self, slot: int, before: np.uint64, word: np.uint64) -> None:
        """Tokens that are new since the word before, and the report of an ended request."""
        same = (before ^ word) & _GENERATION == 0
        begin, end = int(before >> _TOKENS_AT) if same else 0, int(word >> _TOKENS_AT)
        at = self._at["token_offset"] + 4 * int(self._records[slot]["token_begin"])
        if begin < end and at + 4 * end <= self._at["size_bytes"]:
            self._fetch(at + 4 * begin, 4 * (end - begin))
        if int(word & _STATE) == SlotState.DECODE_COMPLETED:
            self._fetch(self._at["reports_offset"] + REPORT.itemsize * slot, REPORT.itemsize)

    def _free_leases(self) -> None:
        device, known = self._leases(self._mirror.view), self._known_leases.view(LEASE)
        host = self._leases(self._ring.host_view)
        for f in range(len(device)):
            if device[f]["active"] == LeaseState.FREE and known[f]["active"] == LeaseState.ENDED:
                self._header["doorbells"][f] = self._known_bells[f] = 0
                host[f]["active"] = known[f]["active"] = LeaseState.FREE

    # --- to the GPU ---

    def _up(self) -> None:
        self._snapshot.view[:] = self._ring.host_view[: self._span]  # what comes later goes with the next round
        header, words = self._views(self._snapshot.view, len(self._words))
        bells, leases = header["doorbells"].copy(), self._leases(self._snapshot.view).view(np.uint8).copy()
        changed = np.flatnonzero(words != self._known)
        for slot in changed.tolist():
            if int(words[slot] & _STATE) in _PENDING:
                self._send_announced(slot)
        for slot in np.flatnonzero(self._cancels != self._known_cancels).tolist():
            self._known_cancels[slot] = self._cancels[slot]
            self._send(self._at["cancels_offset"] + 4 * slot, 4)
        self._stream.wait()
        for slot in changed.tolist():
            self._known[slot] = words[slot]
            self._send(self._at["words_offset"] + 8 * slot, 8, self._snapshot.view)
        if (leases != self._known_leases).any():
            self._known_leases = leases
            self._send(*self._header_field("leases"), self._snapshot.view)
        self._stream.wait()
        if (bells != self._known_bells).any():
            self._known_bells = bells
            self._send(*self._header_field("doorbells"), self._snapshot.view)

    def _send_announced(self, slot: int) -> None:
        self._send(self._at["records_offset"] + RECORD.itemsize * slot, RECORD.itemsize)
        record = self._records[slot]
        at, size = self._at["prompt_offset"] + 4 * int(record["prompt_begin"]), 4 * int(record["prompt_count"])
        if size > 0 and at + size <= self._at["token_offset"]:  # else the scheduler refuses it
            self._send(at, size)

    # --- copies ---

    def _header_field(self, name: str) -> tuple[int, int]:
        dtype, offset = HEADER.fields[name][:2]  # type: ignore[index]
        return offset, dtype.itemsize

    def _leases(self, memory: NDArray[np.uint8]) -> Any:
        offset, size = self._header_field("leases")
        return memory[offset : offset + size].view(LEASE)

    def _send(self, offset: int, size: int, memory: NDArray[np.uint8] | None = None) -> None:
        """From the snapshot what may change before it is read; all else has been announced, and stays."""
        source = self._ring.host_view if memory is None else memory
        driver.send_rows(self._ring.address + offset, 0, source[None, offset : offset + size], self._stream)

    def _fetch(self, offset: int, size: int) -> None:
        driver.fetch_rows(
            self._ring.address + offset, 0, self._ring.host_view[None, offset : offset + size], self._stream
        )
