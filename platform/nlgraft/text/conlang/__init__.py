"""A constructed language family: one grammar of meanings, three languages, two domains, every task.

``lexicon`` has the words as meanings, ``sounds`` their shapes, ``meaning`` what is said, ``language`` how
each language says it, ``tasks`` what becomes source and target.
"""
