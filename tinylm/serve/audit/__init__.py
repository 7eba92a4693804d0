"""Whether a client of a server can rebuild exactly what was sampled, asked from the client's side.

Any llama-server-compatible endpoint, any vocabulary: ids and counts are those received, and no text is
tokenized. HTTP is the standard library's; neither torch nor a model is needed.
"""

from tinylm.serve.audit.run import Audit, Run, audit

__all__ = ["Audit", "Run", "audit"]
