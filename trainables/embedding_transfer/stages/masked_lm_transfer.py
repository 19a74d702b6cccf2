"""The stages that exchange the vocabulary of a masked language model."""

from __future__ import annotations

from nlgraft.nn.masked_lm import TransformersMaskedLM
from nlgraft.pipeline.stage import StageContext
from nlgraft.training.masked_lm import read_masked_lm, write_masked_lm
from nlgraft.training.masked_text import TEXT
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import Encoded
from nlgraft.vocab.methods.token_vectors import VectorOptions, learn_vectors
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.embedding_transfer.masked_lm_generator import TABLE
from trainables.embedding_transfer.new_tokens import token_counts
from trainables.embedding_transfer.stages.generator import read_generators
from trainables.embedding_transfer.stages.masked_lm_text import read_text
from trainables.embedding_transfer.stages.transfer import plan_table, write_transfer_report
from trainables.embedding_transfer.stages.vectors import read_vectors, write_vectors


def learn_token_vectors(context: StageContext) -> None:
    """Learn vectors of a vocabulary's tokens from training text, as wide as the model's table.

    Args:
        context: Options of the vectors; inputs ``encoded``, ``vocabulary`` and ``upstream``.
    """
    model = read_masked_lm(context.inputs["upstream"])
    options = VectorOptions(**context.config, width=model.input_table.shape[1])
    text = read_text(context, "train").stream(TEXT)
    size = len(load_vocabulary(context.inputs["vocabulary"]))
    assert context.seed is not None
    seed = derive_seed(context.seed, "vectors", TABLE) % 2**31
    found = learn_vectors([text[row].tolist() for row in range(len(text))], size, options, seed)
    write_vectors(found, context.directory, TABLE)


def exchange(context: StageContext) -> None:
    """Give a masked language model the vocabulary of the task; everything else is kept bit for bit.

    Args:
        context: Settings of the transfer; inputs ``upstream``, ``old_vocabulary``, ``new_vocabulary``,
            ``generator`` for methods that train one, ``new_vectors`` and ``old_vectors`` for those that read
            them, ``upstream_encoded`` where frequent tokens come first.
    """
    body = read_masked_lm(context.inputs["upstream"])
    assert isinstance(body, TransformersMaskedLM)
    old, new = (load_vocabulary(context.inputs[f"{age}_vocabulary"]) for age in ("old", "new"))
    generators = read_generators(context.inputs["generator"]) if "generator" in context.inputs else {}
    vectors = {
        name: read_vectors(context.inputs[name], TABLE)
        for name in ("new_vectors", "old_vectors")
        if name in context.inputs
    }
    table = body.input_table.detach()
    # rows drawn as a new model's have the deviation that the checkpoint's own configuration names
    noise_std = float(body.model.config.initializer_range)
    generator = generators.get(TABLE)
    frequencies = None
    if "upstream_encoded" in context.inputs:
        text = Encoded.read(context.inputs["upstream_encoded"] / "train.safetensors")
        frequencies = token_counts([text.stream(TEXT)], len(old))
    seed = context.seed or 0
    plan = plan_table(context.config, old, new, table, generator, seed, vectors, noise_std, frequencies)
    plan.save(context.directory / f"plan-{TABLE}")
    exchanged = TransformersMaskedLM(exchange_vocabulary(body.model, plan))
    write_masked_lm(exchanged, context.directory)
    rows = {TABLE: (table.numpy(), exchanged.input_table.detach().numpy())}
    write_transfer_report(context.directory, {TABLE: plan}, rows)
