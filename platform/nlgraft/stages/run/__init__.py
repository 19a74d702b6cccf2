"""The functions that stages run."""
