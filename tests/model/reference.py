"""The forward pass of a GPT in NumPy, float64, one row at a time: the description of nanochat's model (at 92d63d4) put
into the plainest code, for the model to be compared with. It shares no code with `nanocode`.

Weights come as a dict: `embedding` (V, C), `unembedding` (V, C), `blocks` (a list of `attention` and `mlp`), and what
the switched-on parts need.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Architecture:
    """What the weights do not say. The defaults are nanochat's."""

    layers: int
    heads: int
    kv_heads: int
    context: int
    vocab: int
    pattern: str = "SSSL"
    rope_base: float = 100_000.0
    qk_scale: float = 1.2
    softcap: float = 15.0
    epsilon: float = 1.1920929e-07
    smear: bool = True
    backout: bool = True
    scalars: bool = True
    value_embeddings: bool = True
    tied: bool = False


NANOCODE = {
    "pattern": "L",
    "rope_base": 10_000.0,
    "qk_scale": 1.0,
    "epsilon": 1e-6,
    "smear": False,
    "backout": False,
    "scalars": False,
    "value_embeddings": False,
}
"""What salmanmohammadi/nanocode does otherwise."""


def logits(weights: dict[str, Any], own: Architecture, ids: np.ndarray, documents: np.ndarray | None) -> np.ndarray:
    """(T,) ids -> (T, V). Tokens of different `documents` (T,) cannot see each other."""
    documents = np.zeros(len(ids), int) if documents is None else documents
    x = rms_norm(weights["embedding"][ids], own.epsilon)
    if own.smear:
        x = smeared(x, weights["smear"], documents)
    first, middle = x, x
    for layer in range(own.layers):
        if own.scalars:
            x = weights["stream_scale"][layer] * x + weights["embedding_scale"][layer] * first
        block = weights["blocks"][layer]
        x = x + attention(rms_norm(x, own.epsilon), block["attention"], weights, own, layer, ids, documents)
        x = x + np.maximum(rms_norm(x, own.epsilon) @ block["mlp"]["up"], 0) ** 2 @ block["mlp"]["down"]
        middle = x if layer == own.layers // 2 else middle
    if own.backout:
        x = x - weights["backout_strength"] * middle
    table = weights["embedding"] if own.tied else weights["unembedding"]
    raw = rms_norm(x, own.epsilon) @ table[: own.vocab].T
    return own.softcap * np.tanh(raw / own.softcap)


def rms_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def smeared(x: np.ndarray, weights: dict[str, np.ndarray], documents: np.ndarray) -> np.ndarray:
    out = x.copy()
    for t in range(1, len(x)):
        if documents[t] == documents[t - 1]:
            out[t] += weights["strength"] * sigmoid(x[t, :24] @ weights["gate"]) * x[t - 1]
    return out


def rotated(x: np.ndarray, base: float) -> np.ndarray:
    """Pairs (i, i + D/2) as complex numbers, turned by minus position times frequency; x (T, H, D)."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(-1j * angles)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def keys_back(own: Architecture, layer: int) -> int:
    """How many positions before itself a token sees."""
    letter = "L" if layer == own.layers - 1 else own.pattern[layer % len(own.pattern)]
    return own.context if letter == "L" else ceil(own.context / 4 / 128) * 128


def attention(
    h: np.ndarray,
    weights: dict[str, np.ndarray],
    everything: dict[str, Any],
    own: Architecture,
    layer: int,
    ids: np.ndarray,
    documents: np.ndarray,
) -> np.ndarray:
    tokens = len(h)
    q = (h @ weights["query"]).reshape(tokens, own.heads, -1)
    k, v = ((h @ weights[name]).reshape(tokens, own.kv_heads, -1) for name in ("key", "value"))
    if own.value_embeddings and layer % 2 == (own.layers - 1) % 2:
        gate = 3 * sigmoid(h[:, :12] @ weights["value_gate"])
        v = v + gate[..., None] * everything["value_embeddings"][layer // 2][ids].reshape(v.shape)
    q, k = (own.qk_scale * rms_norm(rotated(each, own.rope_base), own.epsilon) for each in (q, k))
    back = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    visible = (back >= 0) & (back <= keys_back(own, layer)) & (documents[:, None] == documents[None, :])
    out = np.zeros_like(q)
    for head in range(own.heads):
        shared = head // (own.heads // own.kv_heads)
        scores = np.exp(q[:, head] @ k[:, shared].T / np.sqrt(q.shape[-1])) * visible
        out[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, shared]
    return out.reshape(tokens, -1) @ weights["output"]
