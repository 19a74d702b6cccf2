"""Exchange of the vocabulary of a Hugging Face model."""
