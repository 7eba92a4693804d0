"""Documents become a corpus: limits, a held-out split, one token stream per split, and the way back in."""

from tinylm.corpus.build import build_corpus
from tinylm.corpus.describe import describe
from tinylm.corpus.opened import MANIFEST, open_corpus
from tinylm.corpus.split import Corpus, Split

__all__ = ["MANIFEST", "Corpus", "Split", "build_corpus", "describe", "open_corpus"]
