"""The command line: a module for each group of commands, and what a person sees in a terminal."""
