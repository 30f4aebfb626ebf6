"""Scores flotilla-demo.gguf on eval.jsonl: greedy answers, exact match.

    python evaluate.py                      # the weights of the file (after Q8_0), in JAX
    python evaluate.py --url http://HOST    # a running engine, over its OpenAI API

Without --url the file itself is checked as well: its tokenizer is rebuilt from its own
tokens and merges, and a second forward pass, in NumPy and with a key-value cache, has to
give the same answers as the first. Both read the matrices back from the file.
"""

import argparse
import collections
import json
import pathlib
import sys
import urllib.request

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models

import model
import tokens
from export import NAMES
from generate import RENDER

HERE = pathlib.Path(__file__).parent
EXTRA = 8  # tokens after which an answer longer than the expected one is cut: it is wrong
ROWS = 16


def read(path):
    """Metadata, and every tensor as float32 in llama.cpp's order (outputs, inputs)."""
    reader = gguf.GGUFReader(path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    return meta, tensors


def weights_of(tensors):
    """The file's tensors as the weights of model.py."""
    layers = []
    for i in range(model.CONFIG["layers"]):
        layer = {ours: jnp.asarray(tensors[f"blk.{i}.{theirs}.weight"].T) for ours, theirs in NAMES.items()}
        layer |= {name: jnp.asarray(tensors[f"blk.{i}.{name}.weight"]) for name in ("attn_norm", "ffn_norm")}
        layers.append(layer)
    return dict(
        embedding=jnp.asarray(tensors["token_embd.weight"]), norm=jnp.asarray(tensors["output_norm.weight"]), layers=layers
    )


def tokenizer_of(meta):
    """A tokenizer made of the file's metadata alone, but for the pre-tokenizer, which the
    file only names ("qwen2")."""
    assert (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) == ("gpt2", "qwen2")
    vocabulary = {text: i for i, text in enumerate(meta["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = tokens.load().pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    control = [text for text, i in vocabulary.items() if kinds[i] == gguf.TokenType.CONTROL]
    assert control == tokens.SPECIAL
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return tokenizer


def check_tokenizer(tokenizer, cases):
    trained = tokens.load()
    for prompt, expect in cases:
        ids = tokenizer.encode(prompt + expect).ids
        assert ids == trained.encode(prompt + expect).ids, prompt
        assert tokenizer.decode(ids, skip_special_tokens=False) == prompt + expect, prompt
    strange = "".join(map(chr, range(32, 0x500))) + "🦀漢字\n\t\0 <tool_call>"
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange


def greedy(weights, tokenizer, cases, end):
    """Greedy answers in JAX, many rows at a time and without a cache.

    Each row starts with the expected answer as a guess. Where the model agrees with all of
    it, that is what greedy decoding gives, after one pass instead of one per token. Else
    the agreeing part is kept, the model's own token comes next, and it goes on from there.
    """
    prompts = [tokenizer.encode(prompt).ids for prompt, _ in cases]
    guesses = [tokenizer.encode(expect).ids + [end] for _, expect in cases]
    answers = [None] * len(cases)
    limits = [len(guess) + EXTRA for guess in guesses]
    left = sorted(range(len(cases)), key=lambda i: len(prompts[i]) + len(guesses[i]))
    while left:
        open_rows = []
        for at in range(0, len(left), ROWS):
            batch = left[at : at + ROWS]
            rows = [prompts[i] + guesses[i] for i in batch]
            time = -(-max(map(len, rows)) // 64) * 64  # few shapes, few compilations
            ids = np.zeros((ROWS, time), np.int32)
            for r, row in enumerate(rows):
                ids[r, : len(row)] = row
            best = np.asarray(best_tokens(weights, ids))
            for r, i in enumerate(batch):
                first = len(prompts[i]) - 1
                chosen = best[r, first : first + len(guesses[i])]
                wrong = np.flatnonzero(chosen != guesses[i])
                if len(wrong):
                    guesses[i] = guesses[i][: wrong[0]] + [int(chosen[wrong[0]])]
                elif guesses[i][-1] != end:
                    guesses[i] = guesses[i] + [int(best[r, first + len(guesses[i])])]
                ended = guesses[i][-1] == end
                if ended or len(guesses[i]) >= limits[i]:
                    answers[i] = tokenizer.decode(guesses[i]) + ("" if ended else "…")
                else:
                    open_rows.append(i)
        left = open_rows
    return answers


@jax.jit
def best_tokens(weights, ids):
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    return jnp.argmax(model.forward(weights, ids, positions, jnp.zeros_like(ids)), -1)


class Second:
    """llama's forward pass once more: NumPy, one token at a time, straight from the file's
    own keys and tensors, sharing nothing with model.py."""

    def __init__(self, meta, tensors):
        self.tensors, self.past = tensors, collections.defaultdict(lambda: ([], []))
        self.layers, self.heads = meta["llama.block_count"], meta["llama.attention.head_count"]
        self.kv_heads = meta["llama.attention.head_count_kv"]
        self.epsilon = meta["llama.attention.layer_norm_rms_epsilon"]
        self.turning = meta["llama.rope.dimension_count"]
        self.speeds = meta["llama.rope.freq_base"] ** (-np.arange(0, self.turning, 2) / self.turning)
        self.position = 0

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x) + self.epsilon) * self.tensors[name + ".weight"]

    def turn(self, x):
        """Rotates the pairs (0, 1), (2, 3), ... of every head, as complex numbers."""
        pairs = np.ascontiguousarray(x, np.float32).view(np.complex64)
        return (pairs * np.exp(1j * self.position * self.speeds).astype(np.complex64)).view(np.float32)

    def feed(self, token):
        """Logits after `token`."""
        t = self.tensors
        x = t["token_embd.weight"][token]
        for i in range(self.layers):
            h = self.norm(x, f"blk.{i}.attn_norm")
            q, k, v = (t[f"blk.{i}.attn_{name}.weight"] @ h for name in "qkv")
            keys, values = self.past[i]
            keys.append(self.turn(k.reshape(self.kv_heads, -1)))
            values.append(v.reshape(self.kv_heads, -1))
            q = self.turn(q.reshape(self.heads, -1))
            mixed = []
            past_keys, past_values = np.stack(keys, 1), np.stack(values, 1)
            for head in range(self.heads):
                group = head * self.kv_heads // self.heads
                scores = past_keys[group] @ q[head] / np.sqrt(q.shape[1])
                shares = np.exp(scores - scores.max())
                mixed.append(shares / shares.sum() @ past_values[group])
            x = x + t[f"blk.{i}.attn_output.weight"] @ np.concatenate(mixed)
            h = self.norm(x, f"blk.{i}.ffn_norm")
            gate = t[f"blk.{i}.ffn_gate.weight"] @ h
            x = x + t[f"blk.{i}.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (t[f"blk.{i}.ffn_up.weight"] @ h))
        self.position += 1
        return t["token_embd.weight"] @ self.norm(x, "output_norm")

    @classmethod
    def answer(cls, meta, tensors, tokenizer, case, end):
        prompt, expect = case
        run, answer, limit = cls(meta, tensors), [], len(tokenizer.encode(expect).ids) + 1 + EXTRA
        for token in tokenizer.encode(prompt).ids:
            logits = run.feed(token)
        while len(answer) < limit and (token := int(np.argmax(logits))) != end:
            answer.append(token)
            logits = run.feed(token)
        return tokenizer.decode(answer) + ("…" if len(answer) >= limit else "")


def ask(url, case):
    """The answer of a running engine. A tool call comes back parsed or as text."""
    body = {"model": "flotilla-demo", "messages": case["messages"], "temperature": 0, "max_tokens": 400}
    body |= {"tools": case["tools"]} if "tools" in case else {}
    request = urllib.request.Request(
        url.rstrip("/") + "/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        message = json.load(response)["choices"][0]["message"]
    parts = [message["content"]] if message.get("content") else []
    for call in message.get("tool_calls") or []:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        arguments = json.dumps(json.loads(arguments), ensure_ascii=False)
        parts.append(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(parts)


def report(cases, answers, show):
    right, all_of = collections.Counter(), collections.Counter()
    for case, answer in zip(cases, answers):
        all_of[case["domain"]] += 1
        right[case["domain"]] += answer == case["expect"]
        if show and answer != case["expect"]:
            print(f"  {case['domain']}: {case['messages'][-1]['content']!r}: {answer!r}, not {case['expect']!r}")
    for domain, count in all_of.items():
        print(f"{domain:12} {right[domain]:4} of {count:3} {right[domain] / count:7.1%}")
    print(f"{'overall':12} {right.total():4} of {all_of.total():3} {right.total() / all_of.total():7.1%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="of a running engine")
    parser.add_argument("--file", default=str(HERE / "flotilla-demo.gguf"))
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    parser.add_argument("--second", type=int, default=4, help="check every n-th question in NumPy too; 0: none")
    options = parser.parse_args()
    cases = [json.loads(line) for line in (HERE / "eval.jsonl").read_text().splitlines()]
    if options.url:
        report(cases, [ask(options.url, case) for case in cases], options.show)
        return

    meta, tensors = read(options.file)
    tokenizer, end = tokenizer_of(meta), meta["tokenizer.ggml.eos_token_id"]
    prompts = [RENDER(messages=c["messages"], tools=c.get("tools"), add_generation_prompt=True) for c in cases]
    texts = [(prompt, case["expect"]) for prompt, case in zip(prompts, cases)]
    check_tokenizer(tokenizer, texts)
    answers = greedy(weights_of(tensors), tokenizer, texts, end)
    report(cases, answers, options.show)
    if options.second:
        chosen = range(0, len(cases), options.second)
        same = [Second.answer(meta, tensors, tokenizer, texts[i], end) == answers[i] for i in chosen]
        print(f"NumPy from the file: {sum(same)} of {len(same)} answers are the same")
        sys.exit(not all(same))


if __name__ == "__main__":
    main()
