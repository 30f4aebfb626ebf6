"""Trains the demo model on a CPU; about an hour on two cores.

`python train.py [minutes]` writes tokenizer.json (once) and checkpoint.npz every few
minutes. The learning rate follows the clock, so the run ends trained whatever the speed;
the data and the first weights have fixed seeds, the number of steps depends on the machine.
"""

import collections
import itertools
import pathlib
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

import model
import tokens
from generate import RENDER, training

HERE = pathlib.Path(__file__).parent
# (tokens of a row, rows, answer tokens that get a loss). Attention costs the square of the
# row, and most dialogues are short: they get rows of their own.
BLOCKS = [(96, 18, 864), (256, 6, 640)]
# Dialogues that wait for a row. More than these and the oldest is dropped, as the mixture
# and the blocks need not match exactly.
WAITING = 400
WARM_UP, PEAK, FLOOR = 100, 4e-3, 2e-5
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
    """Batches: one block of rows per length, rows full of whole dialogues."""
    rng = random.Random(seed)
    encoded = (encode(tokenizer, dialogue) for dialogue in training(seed))
    waiting = [collections.deque(maxlen=WAITING) for _ in BLOCKS]
    while True:
        packed = [None for _ in BLOCKS]
        while any(rows is None for rows in packed):
            for i, (length, count, _) in enumerate(BLOCKS):
                # Half more than fits, so that rows fill up well.
                if packed[i] is None and sum(len(ids) for ids, _ in waiting[i]) > 1.5 * length * count:
                    packed[i] = fill(waiting[i], length, count)
            ids, wanted = next(encoded)
            home = next((i for i, (length, _, _) in enumerate(BLOCKS) if len(ids) <= length), None)
            if home is not None:
                waiting[home].append((ids, wanted))
        yield [block(rows, *shape, rng) for rows, shape in zip(packed, BLOCKS)]


def fill(waiting, length, count):
    """Takes dialogues out of `waiting`, oldest first, into the first row with room."""
    rows, room, left = [[] for _ in range(count)], [length] * count, []
    while waiting:
        dialogue = waiting.popleft()
        size = len(dialogue[0])
        row = next((r for r in range(count) if room[r] >= size), None)
        if row is None:
            left.append(dialogue)
        else:
            rows[row].append(dialogue)
            room[row] -= size
    waiting.extend(left)
    return rows


def block(rows, length, count, answers, rng):
    """Arrays of the rows. Half of the dialogues start at a random position, so that those
    late in a long chat are known as well."""
    result = {k: np.zeros((count, length), np.int32) for k in ("tokens", "positions", "documents")}
    result["documents"] -= 1
    picked, targets, shares = [], [], []
    for r, row in enumerate(rows):
        at = 0
        for number, (ids, wanted) in enumerate(row):
            n = len(ids)
            span = slice(at, at + n)
            offset = 0 if rng.random() < 0.5 else rng.randint(0, model.CONFIG["context"] - n)
            result["tokens"][r, span] = ids
            result["positions"][r, span] = range(offset, offset + n)
            result["documents"][r, span] = number
            # A position predicts the next token, if that one belongs to an answer.
            predicting = [i for i in range(n - 1) if wanted[i + 1]]
            picked += [r * length + at + i for i in predicting]
            targets += [ids[i + 1] for i in predicting]
            shares += [len(predicting) ** -0.5] * len(predicting)
            at += n
    used = min(len(picked), answers)
    # A long answer weighs more than a short one, but not by its length.
    for name, values, kind in (("picked", picked, np.int32), ("targets", targets, np.int32), ("weights", shares, np.float32)):
        result[name] = np.zeros(answers, kind)
        result[name][:used] = values[:used]
    return result


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


def make_optimizer(rate):
    """Muon for the matrices (after a hundred steps its loss was 1.4 where AdamW's was 2.2),
    AdamW for the norms and the embedding."""

    def kinds(weights):
        def kind(path, leaf):
            is_matrix = leaf.ndim == 2 and "embedding" not in jax.tree_util.keystr(path)
            return optax.contrib.MuonDimensionNumbers() if is_matrix else None

        return jax.tree_util.tree_map_with_path(kind, weights)

    muon = optax.contrib.muon(
        rate, weight_decay=0.05, consistent_rms=0.2, adam_b2=0.98, adam_learning_rate=rate, muon_weight_dimension_numbers=kinds
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def main(minutes):
    if not (HERE / "tokenizer.json").exists():
        tokens.make(model.CONFIG["vocabulary"]).save(str(HERE / "tokenizer.json"))
    tokenizer = tokens.load()
    weights = model.init(jax.random.key(SEED))
    print(f"{sum(leaf.size for leaf in jax.tree.leaves(weights)):,} parameters, vocabulary {tokenizer.get_vocab_size()}")
    optimizer = optax.inject_hyperparams(make_optimizer)(rate=0.0)
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
        seen += sum(int((part["documents"] >= 0).sum()) for part in batch)
        losses.append(value)
        if number % 50 == 0:
            mean = float(np.mean(jax.device_get(losses)))
            losses.clear()
            rate = seen / (time.monotonic() - begun)
            print(f"step {number} loss {mean:.4f} {seen:,} tokens {rate:.0f}/s {done:.1%}", flush=True)
        if time.monotonic() - saved > 180:
            save(weights)
            saved = time.monotonic()
    save(weights)
    print(f"{number - 1} steps, {seen:,} tokens, {(time.monotonic() - begun) / 60:.0f} minutes")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
