"""A constructed language family: one grammar of meanings, three languages, two domains, every task.

``lexicon`` holds words and sentences as meanings, ``language`` their sounds and their expression in each
language, ``tasks`` the resulting sources and targets.
"""
