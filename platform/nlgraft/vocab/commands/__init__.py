"""The commands ``nlgraft vocab ...``, from names of files to files."""
