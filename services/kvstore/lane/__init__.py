"""The lane: lookups on one HTTP/2 stream, in gRPC's framing, without a gRPC library's threads in between.

A call through grpc.aio costs half a millisecond, of handing over between threads; a lookup of 512 keys microseconds.
The lane is the method `Lookups` on a port of its own: any gRPC client can call it, and ours does without one too.
"""
