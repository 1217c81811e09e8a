"""Attention over the paged KV pool: the protocol, the oracle in plain torch, and the kernels."""
