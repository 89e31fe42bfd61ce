"""The corpus, read back by what the format says and not by Megatron."""

from __future__ import annotations

import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hanayo_megatron.corpus import END_OF_DOCUMENT
from megatron_runs.launcher import python_environment

HEADER = struct.Struct("<9sQBQQ")  # magic, version, code of the type, sequences, documents
UINT8_CODE = 1


@pytest.fixture(scope="module")
def documents(corpus: Path) -> list[bytes]:
    index, data = Path(f"{corpus}.idx").read_bytes(), Path(f"{corpus}.bin").read_bytes()
    magic, version, code, sequences, documents = HEADER.unpack_from(index)
    assert (magic, version, code) == (b"MMIDIDX\x00\x00", 1, UINT8_CODE)
    assert documents == sequences + 1
    lengths = struct.unpack_from(f"<{sequences}i", index, HEADER.size)
    starts = struct.unpack_from(f"<{sequences}q", index, HEADER.size + 4 * sequences)
    assert starts[-1] + lengths[-1] == len(data)
    return [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]


def test_documents_are_sources_of_the_standard_library(documents):
    library = Path(sysconfig.get_path("stdlib"))
    texts = {document[:-1] for document in documents}
    assert (library / "ast.py").read_bytes() in texts
    assert (library / "argparse.py").read_bytes() in texts


def test_a_document_is_utf8_and_ends_with_its_mark(documents):
    for document in documents:
        assert document[-1] == END_OF_DOCUMENT
        assert END_OF_DOCUMENT not in document[:-1]
        document[:-1].decode("utf-8")


def test_the_size_is_kept(corpus, documents):
    assert sum(map(len, documents)) == Path(f"{corpus}.bin").stat().st_size
    assert 700_000 < sum(map(len, documents)) <= 1_000_000


def test_the_same_python_builds_the_same_corpus(corpus, tmp_path):
    again = tmp_path / "folder" / "again"
    _build(again, 1_000_000).check_returncode()
    for ending in (".bin", ".idx"):
        assert Path(f"{again}{ending}").read_bytes() == Path(f"{corpus}{ending}").read_bytes()


def test_a_size_that_holds_no_document_is_refused(tmp_path):
    refused = _build(tmp_path / "none", 10)
    assert refused.returncode == 2
    assert "max_bytes=10 holds no document" in refused.stderr
    assert not Path(f"{tmp_path}/none.idx").exists()


def _build(prefix: Path, max_bytes: int) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hanayo_megatron.corpus", "--output", str(prefix)]
    return subprocess.run(
        [*command, "--max-bytes", str(max_bytes)],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
