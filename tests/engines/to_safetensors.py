"""Writes the demo model in the form that vLLM reads: to_safetensors.py DEMO_MODEL_FOLDER OUT"""

import json
import pathlib
import re
import shutil
import sys

import numpy
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def name(gguf: str) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", gguf)
    if block:
        return f"model.layers.{block[1]}.{NAMES[block[2]]}.weight"
    return NAMES[gguf.removesuffix(".weight")] + ".weight"


def unpermute(weight: numpy.ndarray, heads: int) -> numpy.ndarray:
    """llama.cpp rotates neighbors, and Hugging Face's models halves of a head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def main(source: pathlib.Path, out: pathlib.Path) -> None:
    reader = GGUFReader(source / "flotilla-demo.gguf")
    field = lambda key: reader.fields[f"llama.{key}"].contents()
    heads = {"q": field("attention.head_count"), "k": field("attention.head_count_kv")}
    tensors = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        part = re.search(r"attn_([qk])\.weight", tensor.name)
        if part:
            weight = unpermute(weight, heads[part[1]])
        tensors[name(tensor.name)] = numpy.ascontiguousarray(weight)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": reader.fields["tokenizer.ggml.eos_token_id"].contents(),
        "hidden_size": field("embedding_length"),
        "intermediate_size": field("feed_forward_length"),
        "max_position_embeddings": field("context_length"),
        "num_attention_heads": heads["q"],
        "num_key_value_heads": heads["k"],
        "num_hidden_layers": field("block_count"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "vocab_size": len(tensors["model.embed_tokens.weight"]),
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "model_max_length": config["max_position_embeddings"],
        "chat_template": (source / "chat_template.jinja").read_text(),
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    shutil.copy(source / "tokenizer.json", out / "tokenizer.json")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
