"""What CTranslate2 can decode: read when a study is planned, so without torch."""

from __future__ import annotations

from importlib.util import find_spec

from nlgraft.nn.model_config import BeamSearchConfig, TransformerConfig

_PLAIN = ("num_sources", "segments", "fine_encoder", "contexts", "fusion", "source_context", "target_context")
"""Settings of a model for whose other values CTranslate2 has no layers."""
_INSTEAD = "set score.engine to torch and score.dev_precision to fp32"


def missing_package() -> list[str]:
    """Return what to install, if anything."""
    if find_spec("ctranslate2") is not None:
        return []
    return [f"CTranslate2 is not installed: pip install 'nlgraft[ctranslate2]', or {_INSTEAD}"]


def unsupported(model: TransformerConfig) -> list[str]:
    """List what CTranslate2 cannot express of a model."""
    plain = TransformerConfig()
    found = [name for name in _PLAIN if getattr(model, name) != getattr(plain, name)]
    if not model.num_encoder_layers:
        found.append("num_encoder_layers 0")
    return [f"CTranslate2 decodes no model with its own {', '.join(found)}; {_INSTEAD}"] if found else []


def unsupported_search(decode: BeamSearchConfig, forced_ids: tuple[int, ...] = ()) -> list[str]:
    """List rules of a search that CTranslate2 does not have, or not as ours.

    It forbids tokens before the softmax, so that a rule that forbids some makes all others likelier.
    """
    rules = {"stopping": "first", "min_length": 0, "no_repeat_ngram": 0}
    found = [
        f"decode.{name} {getattr(decode, name)}" for name in rules if getattr(decode, name) != rules[name]
    ]
    if forced_ids:
        found.append("a language as the second token of the decoder")
    return [f"CTranslate2 searches otherwise with {', '.join(found)}; {_INSTEAD}"] if found else []
