"""A constructed language family: one grammar of meanings, three languages, two domains, every task.

``lexicon`` holds the words as meanings, ``sounds`` their shapes, ``meaning`` the sentences as meanings,
``language`` their expression in each language, ``tasks`` the resulting sources and targets.
"""
