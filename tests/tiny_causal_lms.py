"""Tiny random checkpoints of causal language models with tokenizers of their own."""

import torch
import transformers

from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.tiny_checkpoints import KINDS, LINES, gpt2_tokenizer

RELEASED = ["gpt2", "qwen3", "gemma3", "llama"]
"""Tied and untied, with and without a token of its own to begin a text, one with rows beyond the tokens."""


def _llama(ids):
    end = ids["<|endoftext|>"]
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(ids), max_position_embeddings=64, bos_token_id=end, eos_token_id=end, **sizes
    )
    return transformers.LlamaForCausalLM(config)


def release(directory, kind, lines=LINES, seed=3):
    """Write a checkpoint with its tokenizer, learned from lines."""
    directory.mkdir()
    write, build = KINDS.get(kind, (gpt2_tokenizer, _llama))
    write(directory, lines)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        build(load_vocabulary(directory).ids_by_surface).save_pretrained(directory)
    return directory


def trial_of(checkpoint, lines):
    """Config of llm_vocabulary with a checkpoint, on lines for which it has positions."""
    text = checkpoint.parent / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    files = {split: {"sources": str(text)} for split in ("train", "dev", "test")}
    causal_lm = {"checkpoint": str(checkpoint), "max_tokens": 64}
    return {"data": {"downstream": {"corpus": "files", **files}}, "causal_lm": causal_lm}
