"""The tool ``nlgraft vocab``: vocabularies of checkpoints on disk, planned, exchanged and checked."""
