"""`hostless kv` and `hostless bench kv`: what a KV store holds, whether it is whole, how fast it is."""
