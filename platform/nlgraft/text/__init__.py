"""Text in: corpora, the built-in constructed languages, tokenizers and batches."""
