"""The referee of evaluate: a text compressed with a model's probabilities, and restored bit for bit."""

from tinylm.coder.arithmetic import ArithmeticDecoder, ArithmeticEncoder, frequencies
from tinylm.coder.coded import CodedFile, decode_file, encode_split, model_sha256
from tinylm.coder.header import Header, read_header

__all__ = [
    "ArithmeticDecoder",
    "ArithmeticEncoder",
    "CodedFile",
    "Header",
    "decode_file",
    "encode_split",
    "frequencies",
    "model_sha256",
    "read_header",
]
