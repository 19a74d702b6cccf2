"""Text: corpora, the built-in constructed languages, tokenizers and batches."""
