"""The tokenizer: byte-level BPE with the pre-tokenizer of Qwen 2, which takes digits one
by one; llama.cpp knows it as `qwen2`."""

import itertools
import pathlib

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from generate import RENDER, training

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make(vocabulary, dialogues=20_000):
    """Trains the tokenizer on the text of training dialogues."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = (RENDER(messages=d["messages"], tools=d.get("tools")) for d in itertools.islice(training(1), dialogues))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load():
    """The tokenizer that the model was trained with."""
    return Tokenizer.from_file(str(HERE / "tokenizer.json"))
