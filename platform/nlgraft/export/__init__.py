"""What is taken away of a study: a trial's model as a directory, and the study as an archive."""
