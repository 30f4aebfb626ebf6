"""Trains the demo model on this machine's CPU; about an hour on two cores.

`python train.py [minutes]` writes tokenizer.json (once) and checkpoint.npz every few
minutes. The learning rate follows the clock, so the run ends trained whatever the speed.
"""

import itertools
import pathlib
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import model
import tokens
from generate import RENDER, training

HERE = pathlib.Path(__file__).parent
ROW, ROWS = 384, 20
WARM_UP, PEAK, FLOOR = 60, 4e-3, 1e-4
SEED = 11


def encode(tokenizer, dialogue):
    """Ids, and which of them are answers (their ending token included)."""
    ids, wanted = [], []
    text = RENDER(messages=dialogue["messages"], tools=dialogue.get("tools"))
    for i, part in enumerate(text.split("<|im_start|>assistant\n")):
        if i == 0:
            piece = tokenizer.encode(part).ids
            ids, wanted = piece, [0] * len(piece)
            continue
        answer, _, rest = part.partition("<|im_end|>")
        start = tokenizer.encode("<|im_start|>assistant\n").ids
        answer = tokenizer.encode(answer + "<|im_end|>").ids
        rest = tokenizer.encode(rest).ids
        ids += start + answer + rest
        wanted += [0] * len(start) + [1] * len(answer) + [0] * len(rest)
    return ids, wanted


def batches(tokenizer, seed):
    """Rows of whole dialogues; each dialogue starts at a position of its own."""
    rng = random.Random(seed)
    encoded = (encode(tokenizer, d) for d in training(seed))
    open_rows = [[] for _ in range(ROWS)]
    while True:
        ids, wanted = next(encoded)
        if len(ids) > ROW:
            continue
        row = next((r for r in open_rows if sum(len(i) for i, _ in r) + len(ids) <= ROW), None)
        if row is not None:
            row.append((ids, wanted))
            continue
        yield pack(open_rows, rng)
        open_rows = [[] for _ in range(ROWS)]
        open_rows[0].append((ids, wanted))


def pack(rows, rng):
    shape = (ROWS, ROW)
    batch = {k: np.zeros(shape, np.int32) for k in ("tokens", "targets", "positions", "documents")}
    batch["weights"] = np.zeros(shape, np.float32)
    batch["documents"] -= 1
    for r, row in enumerate(rows):
        at = 0
        for number, (ids, wanted) in enumerate(row):
            n = len(ids)
            span = slice(at, at + n)
            offset = 0 if rng.random() < 0.5 else rng.randint(0, model.CONFIG["context"] - n)
            batch["tokens"][r, span] = ids
            batch["targets"][r, span] = ids[1:] + [0]
            batch["weights"][r, span] = wanted[1:] + [0]
            batch["positions"][r, span] = range(offset, offset + n)
            batch["documents"][r, span] = number
            at += n
    return batch


def save(weights):
    flat = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(weights)}
    temporary = HERE / "checkpoint.tmp.npz"
    np.savez(temporary, **flat)
    temporary.replace(HERE / "checkpoint.npz")


def restore():
    """The weights of the last checkpoint."""
    flat = np.load(HERE / "checkpoint.npz")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree_util.tree_map_with_path(lambda path, _: jnp.asarray(flat[jax.tree_util.keystr(path)]), shapes)


def main(minutes):
    if not (HERE / "tokenizer.json").exists():
        tokens.make(model.CONFIG["vocabulary"]).save(str(HERE / "tokenizer.json"))
    tokenizer = tokens.load()
    weights = model.init(jax.random.key(SEED))
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(weights)):,} parameters, vocabulary {tokenizer.get_vocab_size()}")
    optimizer = optax.inject_hyperparams(
        lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.98, weight_decay=0.05))
    )(rate=0.0)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights, state, batch, rate):
        state.hyperparams["rate"] = rate
        value, gradient = jax.value_and_grad(model.loss)(weights, batch)
        updates, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, updates), state, value

    begun = saved = time.monotonic()
    seen, losses = 0, []
    for number, batch in zip(itertools.count(1), batches(tokenizer, SEED)):
        done = (time.monotonic() - begun) / (60 * minutes)
        if done >= 1:
            break
        decay = FLOOR + (PEAK - FLOOR) * 0.5 * (1 + np.cos(np.pi * done))
        weights, state, value = step(weights, state, batch, min(1, number / WARM_UP) * decay)
        seen += int((batch["documents"] >= 0).sum())
        losses.append(float(value))
        if number % 20 == 0:
            rate = seen / (time.monotonic() - begun)
            print(f"step {number} loss {np.mean(losses[-20:]):.4f} {seen:,} tokens {rate:.0f}/s {done:.1%}", flush=True)
        if time.monotonic() - saved > 240:
            save(weights)
            saved = time.monotonic()
    save(weights)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
