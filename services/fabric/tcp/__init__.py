"""Transport `tcp`: one-sided operations over connections, served by a native thread of the owner (D7, D8).

`agent.py` is the owner's side, `region.py` a peer's. docs/operations.md says how to run it.
"""
