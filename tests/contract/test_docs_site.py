"""The documentation as a site: it builds without a warning, and programs find every page as Markdown."""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.processes import python

pytest.importorskip("mkdocs", reason="no mkdocs: install the extra docs")

ROOT = Path(__file__).parents[2]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    path = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
    build = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)
    python(*build, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"})
    return folder


def pages():
    """Every page of the navigation."""
    paths = []
    waiting = list(CONFIG["nav"])
    while waiting:
        for inner in waiting.pop(0).values():
            paths += [inner] if isinstance(inner, str) else []
            waiting += inner if isinstance(inner, list) else []
    return paths


def test_every_page_is_there_for_people_and_as_markdown(site):
    listed = re.findall(r"^- \[[^]]+\]\((.*?)\): \S", (site / "llms.txt").read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(pages())
    for page in pages():
        assert (site / page).with_suffix(".html").is_file()
        text = (site / page).read_text("utf-8")
        assert text.startswith("# ")
        assert "<!--" not in text
        assert "::: " not in text


def test_what_pages_put_in_is_there(site):
    metrics = (site / "metrics.md").read_text("utf-8")
    assert re.search(r"^\| `test/bleu` \| higher \| .+ \| .+ \|$", metrics, re.M)
    assert "## Deviations" in (site / "systems" / "multi_source.md").read_text("utf-8")
    assert "translate(" in (site / "api.md").read_text("utf-8")
    shown = (site / "api.html").read_text("utf-8")
    assert 'id="nlgraft.api.launch"' in shown
    assert "Raises" in shown


def test_the_site_needs_no_network(site):
    text = "".join(path.read_text("utf-8") for path in site.rglob("*.html"))
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://", text)


def test_pictures_are_few_and_small():
    sizes = [path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()]
    assert 0 < len(sizes) < 10
    assert max(sizes) < 150_000
