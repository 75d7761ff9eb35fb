"""Transport `verbs`: one-sided RDMA over reliable connections (B7, B12-B14, D7, D8).

An owner registers a region with its device (owner.py) and answers `QueuePairs.Connect`; a peer connects a queue pair
a traffic class (connection.py) and moves bytes by it alone (region.py). docs/operations.md says how to run
it, docs/ring.md what it promises the ring.
"""
