import gzip
import os
import random
import threading

import pyarrow
import pytest
from pydantic import TypeAdapter

from nlgraft.basics.errors import DataError
from nlgraft.text.files import InputPathOrName, file_digest, read_lines


def read(path, content, limit=100):
    path.write_bytes(content)
    return read_lines(str(path), limit)


def zstd(content):
    return pyarrow.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)])
def test_compressed_files_are_read_in_all_their_parts(tmp_path, suffix, compress):
    parts = [b"ein Hund\n", "zwei Hünde\n".encode()]
    content = b"".join(map(compress, parts))
    for name in (f"x.de{suffix}", "named-otherwise"):
        assert read(tmp_path / name, content).lines == ["ein Hund", "zwei Hünde"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        ("a\u2028b\x85c\x0cd\n".encode(), ["a\u2028b\x85c\x0cd"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r", ["a\r"]),
        (b"\n", [""]),
    ],
)
def test_lines_end_at_lf_and_crlf_alone(tmp_path, content, lines):
    """BOM, CRLF, U+2028 inside a line."""
    assert read(tmp_path / "x", content).lines == lines


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="x: the file is empty"):
        read(tmp_path / "x", content)


def test_not_utf8_is_named_by_line_and_byte(tmp_path):
    with pytest.raises(DataError, match=r"x, line 2: not UTF-8 at byte 6 of the text \(bytes e9: .*iconv"):
        read(tmp_path / "x", b"abc\nca\xe9 b\n")
    with pytest.raises(DataError, match=r"line 1: not UTF-8 at byte 0"):
        read(tmp_path / "x", "utf-16".encode("utf-16"))
    with pytest.raises(DataError, match=r"line 1: not UTF-8 at byte 1 .*unexpected end of data"):
        read(tmp_path / "x", b"a\xc3")


@pytest.mark.parametrize("bom", [b"\xff\xfe", b"\xfe\xff"])
def test_utf16_is_converted_as_what_it_is(tmp_path, bom):
    """As LATIN1 it would become text with a NUL beside every letter."""
    text = "zwei Hünde\n".encode("utf-16-le" if bom == b"\xff\xfe" else "utf-16-be")
    with pytest.raises(DataError, match=r"line 1: not UTF-8 at byte 0 .*iconv -f UTF-16 -t UTF-8"):
        read(tmp_path / "x", bom + text)


def test_text_with_nul_characters_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"x, line 1: a NUL character.*UTF-16LE"):
        read(tmp_path / "x", "ab\n".encode("utf-16-le"))


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_broken_file_is_refused(tmp_path, compress):
    whole = compress(random.Random(1).randbytes(500).hex().encode())
    for broken in (whole[:-12], whole[:10] + b"\xff" * 20 + whole[30:]):
        with pytest.raises(DataError, match=r"broken (gzip|zstd)"):
            read(tmp_path / "x", broken)


def test_a_missing_file_says_where_and_what_is_there(tmp_path, monkeypatch):
    (tmp_path / "train.en").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError,
        match=r"train\.de: no such file .*holds train\.en.* Did you mean 'train\.en'. Give a readable file$",
    ):
        read_lines("train.de", 10)
    with pytest.raises(DataError, match="is a directory"):
        read_lines(".", 10)


def test_paths_start_at_home_or_here(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("a\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_lines("~/x", 10).lines == ["a"]
    monkeypatch.chdir(tmp_path)
    assert read_lines("x", 10).lines == ["a"]


@pytest.mark.parametrize("char", ["a", "ü", "語", "😀"])
@pytest.mark.parametrize("more", [0, 1, 2, 500])
def test_an_over_long_line_is_cut_and_counted(tmp_path, char, more):
    """A line may have any length; characters are never halved."""
    contents = read(tmp_path / "x", f"a\n{char * (20 + more)}\nb\n".encode(), limit=20)
    assert contents.lines == ["a", char * 20, "b"]
    assert contents.num_cut == (1 if more else 0)


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + "😀".encode() * 9, b"12345678\r\n", b"123456789\r\n"])
def test_a_line_of_about_the_limit_is_whole(tmp_path, content):
    contents = read(tmp_path / "x", content, limit=9)
    assert contents.num_cut == 0
    assert contents.lines == [content.decode("utf-8-sig").rstrip("\r\n")]


def test_a_digest_is_read_again_when_the_file_changes(tmp_path):
    path = tmp_path / "x"
    path.write_text("a")
    before = file_digest(str(path))
    assert file_digest(str(path)) == before
    path.write_text("ab")
    assert file_digest(str(path)) != before


def test_a_name_stays_a_name_unless_there_is_such_a_file(tmp_path):
    adapter = TypeAdapter(InputPathOrName)
    (tmp_path / "corpus").mkdir()
    context = {"directory": str(tmp_path)}
    assert adapter.validate_python("corpus", context=context) == str(tmp_path / "corpus")
    assert adapter.validate_python("org/corpus", context=context) == "org/corpus"
    assert adapter.validate_python("corpus") == "corpus"


def test_a_pipe_is_read_once_and_whole(tmp_path):
    """As a shell passes ``<(zcat text)``: what was read to tell its format cannot be read again."""
    for content in (b"first\nsecond\n", gzip.compress(b"first\nsecond\n")):
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        assert read_lines(f"/dev/fd/{reading}", 100).lines == ["first", "second"]
        os.close(reading)


def test_a_named_pipe_is_read_while_somebody_writes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"first\nsecond\n",))
    writer.start()
    assert read_lines(str(tmp_path / "pipe"), 100).lines == ["first", "second"]
    writer.join()


def test_a_pipe_without_a_writer_is_not_awaited_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("nlgraft.text.files._PIPE_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="nobody has written for"):
        read_lines(str(tmp_path / "pipe"), 100)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "pipe"])
def test_what_can_be_read_only_once_identifies_no_text(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(DataError, match="a pipe or a device"):
        file_digest(name)
    if name != "pipe":
        with pytest.raises(DataError, match="a pipe or a device"):
            read_lines(name, 100)
