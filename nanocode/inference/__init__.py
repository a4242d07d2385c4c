"""Jitted prefill and decoding with a key-value cache."""
