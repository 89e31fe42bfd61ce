"""A small corpus of real text that every machine has: the sources of Python's standard library.

    python -m hanayo_megatron.corpus --output PREFIX [--max-bytes N]

writes PREFIX.bin and PREFIX.idx, Megatron's indexed format, for its flags

    --data-path PREFIX --tokenizer-type NullTokenizer --vocab-size 256

A token is a byte of UTF-8. The byte 255 never occurs in it and ends each document: it is what
Megatron's NullTokenizer takes for the end of a document at this vocabulary size.
"""

from __future__ import annotations

import argparse
import logging
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from hanayo_megatron.cpu.compilation import disable_torch_compile

VOCABULARY_SIZE = 256
END_OF_DOCUMENT = VOCABULARY_SIZE - 1
DEFAULT_BYTES = 8_000_000

# Not part of every installation, or not the standard library.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "tkinter"}

logger = logging.getLogger(__name__)


def build_corpus(prefix: Path, *, max_bytes: int = DEFAULT_BYTES) -> int:
    """Write the corpus to `prefix`.bin and `prefix`.idx; the latter is there once both are whole.

    The same Python gives the same corpus.

    Args:
        max_bytes: stop before the document that would exceed this many tokens.

    Returns:
        The number of tokens.

    Raises:
        ValueError: not even the first document fits.
    """
    import numpy as np
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint8)
    tokens = 0
    for text in _documents():
        if tokens + len(text) + 1 > max_bytes:
            break
        document = np.frombuffer(text + bytes([END_OF_DOCUMENT]), dtype=np.uint8)
        builder.add_document(document, [len(document)])
        tokens += len(document)
    if tokens == 0:
        raise ValueError(f"max_bytes={max_bytes} holds no document; give some 100000 at least")
    builder.finalize(f"{prefix}.idx")
    return tokens


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="hanayo_megatron.corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, metavar="PREFIX")
    parser.add_argument("--max-bytes", type=int, default=DEFAULT_BYTES, metavar="N")
    arguments = parser.parse_args(argv)
    disable_torch_compile()  # Importing Megatron then takes 2 s instead of 5.
    warnings.simplefilter("ignore")  # Megatron's, about packages that training may need.
    try:
        tokens = build_corpus(arguments.output, max_bytes=arguments.max_bytes)
    except ValueError as error:
        parser.error(str(error))
    logger.info("%s.bin and .idx hold %d tokens", arguments.output, tokens)


def _documents() -> Iterator[bytes]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(library).parts):
            text = path.read_bytes()
            if text and _is_utf8(text):
                yield text


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
