"""What is taken away of a study: the model of a trial as a directory, with its card."""
