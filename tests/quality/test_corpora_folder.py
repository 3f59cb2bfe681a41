"""A user's folder as a corpus: every kind of file, and everything that can be wrong with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longproof.errors import CorpusError
from longproof.quality.corpora.directory import directory_corpus, read_directory
from longproof.quality.corpora.html import html_text
from longproof.quality.corpora.pdf import pdf_text
from longproof.quality.corpora.reading import MOST_FILE_BYTES, decode
from longproof.quality.corpora.unreadable import Unreadable


def pdf(*pages: list[str]) -> bytes:
    """A PDF written by hand: one text object a page, a line at a time, with a correct table of offsets."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode())
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, lines in enumerate(pages):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        drawn = "".join(f"({line}) Tj 0 -20 Td " for line in lines)
        stream = f"BT /F1 12 Tf 50 750 Td {drawn}ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream))
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(body))
    return body + head + table + trailer


def skipped_of(directory: Path, kind: str = "prose") -> dict[str, str]:
    corpus = directory_corpus(directory, kind=kind)  # type: ignore[arg-type]
    return {entry.name: entry.why for entry in corpus.skipped}


def test_every_kind_is_read_when_a_folder_holds_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Plain text here.")
    (tmp_path / "b.md").write_text("# Heading\n\nMarkdown text here.")
    (tmp_path / "c.html").write_text("<p>Page text here.</p><script>evil()</script>")
    (tmp_path / "d.pdf").write_bytes(pdf(["Printed text here."]))
    (tmp_path / "README").write_text("Read this first.")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.py").write_text("def f():\n    return 1\n")
    texts = directory_corpus(tmp_path, kind="prose")
    assert texts.units() == (
        "Read this first.",
        "Plain text here.",
        "# Heading",
        "Markdown text here.",
        "Page text here.",
        "Printed text here.",
    )
    code = directory_corpus(tmp_path, kind="code")
    assert [document.name for document in code.documents()] == ["sub/m.py"]
    assert code.manifest_sha256 == texts.manifest_sha256
    assert texts.name == tmp_path.name
    assert "not stated" in texts.licence


def test_what_cannot_be_read_is_listed_when_a_folder_is_odd(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Good text.")
    (tmp_path / "empty.txt").write_text("  \n")
    (tmp_path / "binary.txt").write_bytes(b"MZ\0\0\1\2")
    (tmp_path / "controls.txt").write_bytes(bytes(range(1, 32)) * 20)
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4 no more")
    (tmp_path / "scan.pdf").write_bytes(pdf([]))
    with (tmp_path / "huge.txt").open("wb") as huge:
        huge.truncate(MOST_FILE_BYTES + 1)  # sparse: takes no room
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("Hidden text.")
    assert skipped_of(tmp_path) == {
        "empty.txt": "empty",
        "binary.txt": "binary",
        "controls.txt": "binary",
        "photo.jpg": "not a kind of file that is read",
        "bad.pdf": skipped_of(tmp_path)["bad.pdf"],
        "scan.pdf": "a PDF without text, as scanned pages are",
        "huge.txt": "67,108,865 bytes, more than 67,108,864",
        "broken.txt": "a link that leads nowhere (No such file or directory)",
        "pipe.txt": "not a regular file",
        "loop": "a folder that was read already",
    }
    assert skipped_of(tmp_path)["bad.pdf"].startswith("not a PDF that can be read (")
    assert directory_corpus(tmp_path, kind="prose").units() == ("Good text.",)


def test_files_that_may_not_be_opened_are_listed_when_they_are_there(tmp_path: Path) -> None:
    """A file that is gone when it is opened stands for one without permission: tests may run as root."""
    (tmp_path / "good.txt").write_text("Good text.")
    (tmp_path / "z.txt").write_text("Gone soon.")
    skipped: list = []
    for found in read_directory(tmp_path, skipped):
        assert found.name == "good.txt"
        (tmp_path / "z.txt").rename(tmp_path / "z.moved")
    assert [(entry.name, entry.why[:9]) for entry in skipped] == [("z.txt", "a link th")]


def test_files_beyond_the_limit_are_listed_when_a_folder_is_large(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"Text {name} " * 2)  # 14 bytes each
    skipped: list = []
    assert [found.name for found in read_directory(tmp_path, skipped, most_bytes=30)] == ["a.txt", "b.txt"]
    assert [(entry.name, entry.why) for entry in skipped] == [("c.txt", "beyond the first 30 bytes of the folder")]


def test_names_that_are_no_utf8_can_be_printed_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("Good text.")
    corpus = directory_corpus(tmp_path, kind="prose")
    assert [document.name for document in corpus.documents()] == [r"caf\udce9.txt"]


@pytest.mark.parametrize("make", ["nothing", "empty", "file", "only code"])
def test_a_folder_without_text_is_refused_with_the_reason(tmp_path: Path, make: str) -> None:
    place = tmp_path / "place"
    if make in ("empty", "only code"):
        place.mkdir()
    if make == "only code":
        (place / "a.png").write_bytes(b"x")
        (place / "b.png").write_bytes(b"x")
    if make == "file":
        place.write_text("x")
    expected = {
        "nothing": "is not there",
        "file": "is not a folder",
        "empty": "holds no prose that can be read .no file of another kind was skipped.",
        "only code": "holds no prose that can be read .2 skipped: not a kind of file that is read.",
    }
    with pytest.raises(CorpusError, match=expected[make]):
        directory_corpus(place, kind="prose")


GERMAN = (
    "Grüße aus Köln, früh am Morgen über die Brücke. Die Händler öffneten ihre Läden, während der Nebel noch über dem "
    "Fluss lag. Später fuhren die Züge wieder pünktlich."
)
FRENCH = "Le café était fermé à cause de la grève; les élèves sont restés à l'école jusqu'à midi."


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "utf-8"),
        (GERMAN, "utf-8-sig"),
        (GERMAN, "utf-16"),
        (GERMAN, "utf-32"),
        (GERMAN, "latin-1"),
        (FRENCH, "latin-1"),
        ("Привет, это обычный текст на русском языке, написанный для проверки.", "cp1251"),
        ("これは日本語の文章です。文字コードを調べるために書きました。", "shift_jis"),
    ],
)
def test_text_is_read_when_it_is_in_any_encoding(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding)) == text


def test_the_coding_line_counts_when_python_source_is_read() -> None:
    """0xF1 is ё in KOI8-R's half 0xA3; in the letter table of koi8-r 0xD1 is я."""
    source = "# -*- coding: koi8-r -*-\nx = 'я'\n"
    assert decode(source.encode("koi8-r"), ".py") == source


def test_binary_is_refused_when_bytes_are_no_text() -> None:
    with pytest.raises(Unreadable, match="binary"):
        decode(b"\x7fELF\0\0\1")


def test_a_page_is_read_as_a_browser_shows_it_when_it_is_html() -> None:
    page = """<!doctype html><html><head><title>T</title><style>p{}</style></head><body><nav>Menu</nav>
    <h1>Title</h1><p>Hello   <b>big</b>
    world<br>next line</p><pre>a
      b</pre><ul><li>one<li>two</ul><table><tr><td>x<td>y</table><footer>Foot</footer></body></html>"""
    assert html_text(page) == "Title\n\nHello big world\nnext line\n\na\n      b\n\none\ntwo\n\nx\ny"
    assert html_text("<body><div>Left</div><main><p>Right</p></main></body>") == "Right"
    assert html_text("") == ""


def test_a_page_is_read_when_it_nests_deeper_than_python_calls() -> None:
    assert html_text("<div>" * 400 + "deep" + "</div>" * 400) == "deep"


def test_words_are_whole_and_page_numbers_gone_when_a_pdf_is_read() -> None:
    first = [
        "The committee met on the first floor and exam-",
        "ined the accounts. All was well.",
        "Next, the gate.",
        "3",
    ]
    text = pdf_text(pdf(first, ["Second page."]))
    assert "examined the accounts" in text
    assert "\n3" not in text
    assert text.endswith("Second page.")


def test_a_pdf_is_refused_when_it_is_locked(tmp_path: Path) -> None:
    from pypdf import PdfReader, PdfWriter

    plain = tmp_path / "plain.pdf"
    plain.write_bytes(pdf(["Printed text here."]))
    writer = PdfWriter(clone_from=PdfReader(plain))
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(plain)
    with pytest.raises(Unreadable, match="locked with a password"):
        pdf_text(plain.read_bytes())
