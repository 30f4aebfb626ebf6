"""The demo model in JAX: llama's architecture, as llama.cpp computes it.

RMSNorm, rotary positions on neighbouring pairs (llama.cpp's "norm" layout), grouped
query attention, SwiGLU, tied embeddings, no biases. float32 throughout.
"""

import math

import jax
import jax.numpy as jnp

CONFIG = dict(
    vocabulary=2560, width=192, layers=6, heads=6, kv_heads=3, head_width=32, hidden=512,
    context=1024, rope_base=10000.0, epsilon=1e-5,
)  # fmt: skip


def init(key, c=CONFIG):
    """Weights, stored as (inputs, outputs) matrices."""
    keys = iter(jax.random.split(key, 2 + 7 * c["layers"]))

    def matrix(rows, columns, scale=1.0):
        return jax.random.normal(next(keys), (rows, columns)) * scale / math.sqrt(rows)

    q, kv = c["heads"] * c["head_width"], c["kv_heads"] * c["head_width"]
    out_scale = 1.0 / math.sqrt(2 * c["layers"])
    layers = [
        dict(
            attn_norm=jnp.ones(c["width"]), ffn_norm=jnp.ones(c["width"]),
            q=matrix(c["width"], q), k=matrix(c["width"], kv), v=matrix(c["width"], kv),
            o=matrix(q, c["width"], out_scale),
            gate=matrix(c["width"], c["hidden"]), up=matrix(c["width"], c["hidden"]),
            down=matrix(c["hidden"], c["width"], out_scale),
        )
        for _ in range(c["layers"])
    ]  # fmt: skip
    embedding = jax.random.normal(next(keys), (c["vocabulary"], c["width"])) * 0.02
    return dict(embedding=embedding, norm=jnp.ones(c["width"]), layers=layers)


def rms_norm(x, weight, epsilon):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon) * weight


def rotate(x, positions, base):
    """x: (..., time, heads, width)."""
    width = x.shape[-1]
    frequencies = base ** (-jnp.arange(0, width, 2) / width)
    angles = positions[..., None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)


def forward(weights, tokens, positions, documents, c=CONFIG):
    """Logits (rows, time, vocabulary)."""
    return hidden(weights, tokens, positions, documents, c) @ weights["embedding"].T


def hidden(weights, tokens, positions, documents, c=CONFIG):
    """What the logits are made of. A token sees earlier ones of its own document."""
    rows, time = tokens.shape
    x = weights["embedding"][tokens]
    causal = jnp.tril(jnp.ones((time, time), bool))
    mask = causal[None] & (documents[:, :, None] == documents[:, None, :])
    groups = c["heads"] // c["kv_heads"]
    for layer in weights["layers"]:
        h = rms_norm(x, layer["attn_norm"], c["epsilon"])
        q = rotate((h @ layer["q"]).reshape(rows, time, c["heads"], -1), positions, c["rope_base"])
        k = rotate((h @ layer["k"]).reshape(rows, time, c["kv_heads"], -1), positions, c["rope_base"])
        v = (h @ layer["v"]).reshape(rows, time, c["kv_heads"], -1)
        q = q.reshape(rows, time, c["kv_heads"], groups, -1)
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / math.sqrt(c["head_width"])
        scores = jnp.where(mask[:, None, None], scores, -1e9)
        mixed = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, -1), v)
        x = x + mixed.reshape(rows, time, -1) @ layer["o"]
        h = rms_norm(x, layer["ffn_norm"], c["epsilon"])
        x = x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
    return rms_norm(x, weights["norm"], c["epsilon"])


def loss(weights, blocks):
    """Mean cross entropy over the tokens of answers, of blocks of rows of several lengths.

    Two thirds of the tokens are questions; only the picked positions get logits.
    """
    total = count = 0.0
    for block in blocks:
        x = hidden(weights, block["tokens"], block["positions"], block["documents"])
        x = x.reshape(-1, x.shape[-1])[block["picked"]]
        logits = jax.nn.log_softmax(x @ weights["embedding"].T, -1)
        right = jnp.take_along_axis(logits, block["targets"][:, None], -1)[:, 0]
        total += jnp.sum(right * block["weights"])
        count += jnp.sum(block["weights"])
    return -total / jnp.maximum(count, 1)
