"""Placement decisions as pure functions: no clock, no asyncio, no gRPC. Service and simulator call the same ones."""
