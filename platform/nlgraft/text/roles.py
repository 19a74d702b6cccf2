"""Checks that a corpus has the roles and splits that a system needs, made when a study is read."""

from __future__ import annotations

from pydantic import AfterValidator

from nlgraft.text.corpus_config import (
    AnyCorpus,
    ConlangConfig,
    CorpusConfig,
    FilesConfig,
    as_corpus,
    further_tests,
)


def role_problem(
    corpus: CorpusConfig,
    *required: str,
    is_exact: bool = False,
    is_tested: bool = True,
    has_further_tests: bool = True,
) -> str | None:
    """Explain why a corpus cannot be used, by its roles and splits; None when it can.

    Args:
        corpus: The corpus.
        required: Roles that it must have.
        is_exact: Refuse all other roles.
        is_tested: It needs a test split.
        has_further_tests: Further test sets are scored as well.
    """
    if (further := further_tests(corpus)) and not (is_tested and has_further_tests):
        return f"has further test sets ({', '.join(further)}), on which nothing is scored: leave them out"
    if is_tested and isinstance(corpus, FilesConfig) and corpus.test is None:
        return "needs a test split, on which the results are computed: give the files of test"
    missing = [role for role in required if role not in corpus.roles]
    others = [role for role in corpus.roles if role not in required] if is_exact else []
    if not missing and not others:
        return None
    requirement = f"{'exactly ' if is_exact else ''}{' and '.join(required)}"
    task = f" of task {corpus.task}" if isinstance(corpus, ConlangConfig) else ""
    return f"needs {requirement}; the {corpus.corpus} corpus{task} has {', '.join(corpus.roles)}"


def requires(*roles: str, is_tested: bool = True, has_further_tests: bool = True) -> AfterValidator:
    """Make the annotation of a corpus that needs these roles; arguments as in ``role_problem``.

    In a system's config: ``text: Annotated[CorpusConfig, requires("source 0", "target")]``.
    """

    def check(corpus: AnyCorpus) -> AnyCorpus:
        wide = as_corpus(corpus)
        if problem := role_problem(wide, *roles, is_tested=is_tested, has_further_tests=has_further_tests):
            raise ValueError(problem)
        return corpus

    return AfterValidator(check)
