"""Writes flotilla-demo.gguf from the last checkpoint: matrices as Q8_0, norms as F32."""

import json
import pathlib

import gguf
import numpy as np

import model
import tokens
import train
from generate import TEMPLATE

HERE = pathlib.Path(__file__).parent
Q8_0 = gguf.GGMLQuantizationType.Q8_0
# llama.cpp's names of our matrices.
NAMES = dict(q="attn_q", k="attn_k", v="attn_v", o="attn_output", gate="ffn_gate", up="ffn_up", down="ffn_down")


def main():
    c, weights = model.CONFIG, train.restore()
    temporary = HERE / "flotilla-demo.tmp.gguf"
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_name("Flotilla Demo")
    writer.add_license("apache-2.0")
    writer.add_description("A toy that knows a few declared domains; for demos and tests")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(c["context"])
    writer.add_embedding_length(c["width"])
    writer.add_block_count(c["layers"])
    writer.add_feed_forward_length(c["hidden"])
    writer.add_head_count(c["heads"])
    writer.add_head_count_kv(c["kv_heads"])
    writer.add_layer_norm_rms_eps(c["epsilon"])
    writer.add_rope_dimension_count(c["head_width"])
    writer.add_key_length(c["head_width"])
    writer.add_value_length(c["head_width"])
    writer.add_rope_freq_base(c["rope_base"])
    writer.add_vocab_size(c["vocabulary"])
    add_tokenizer(writer)
    # llama.cpp stores a matrix as (outputs, inputs).
    add(writer, "token_embd.weight", weights["embedding"], Q8_0)
    add(writer, "output_norm.weight", weights["norm"])
    for i, layer in enumerate(weights["layers"]):
        add(writer, f"blk.{i}.attn_norm.weight", layer["attn_norm"])
        add(writer, f"blk.{i}.ffn_norm.weight", layer["ffn_norm"])
        for ours, theirs in NAMES.items():
            add(writer, f"blk.{i}.{theirs}.weight", layer[ours].T, Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.replace(HERE / "flotilla-demo.gguf")
    print(f"{(HERE / 'flotilla-demo.gguf').stat().st_size:,} bytes")


def add(writer, name, values, kind=None):
    values = np.ascontiguousarray(values, dtype=np.float32)
    if kind is None:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def add_tokenizer(writer):
    tokenizer = json.loads(tokens.load().to_str())
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    texts = [text for text, _ in vocabulary]
    assert len(texts) == model.CONFIG["vocabulary"]
    kinds = [gguf.TokenType.CONTROL if text in tokens.SPECIAL else gguf.TokenType.NORMAL for text in texts]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(texts.index("<|endoftext|>"))
    writer.add_eos_token_id(texts.index("<|im_end|>"))
    writer.add_pad_token_id(texts.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


if __name__ == "__main__":
    main()
