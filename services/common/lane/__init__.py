"""A lane: one method on one HTTP/2 stream, in gRPC's framing, without a gRPC library's threads in between.

A call through grpc.aio costs half a millisecond and more, of handing over between threads; what the store's lookup and
the scheduler's placing do costs microseconds. A lane is a streaming method on a port of its own: any gRPC client can
call it, and ours do without one too.
"""
