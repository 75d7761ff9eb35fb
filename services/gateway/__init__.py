"""OpenAI HTTP and SSE in, one `Frontend.Session` to a tokenizer out; holds no model and no tokens (B16)."""
