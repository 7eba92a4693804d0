"""What one training example is: rows and batches as pure functions of (corpus, policy, window, seed, step).

A piece (start, length) reads `stream[start : start + length + 1]`: the first `length` tokens are its
inputs, the last `length` its targets. A row is one piece, or under the policy `mask` several side by side.
Over an epoch every byte is a target exactly once, and the boundary is a target exactly where a document
ends.
"""

from tinylm.batches.order import permute as permute
from tinylm.batches.packing import pack as pack
from tinylm.batches.plan import Batch as Batch
from tinylm.batches.plan import Plan as Plan
from tinylm.batches.rows import IGNORED as IGNORED
from tinylm.batches.rows import PADDED as PADDED
from tinylm.batches.rows import Integers as Integers
from tinylm.batches.rows import gather as gather
from tinylm.batches.rows import gather_packed as gather_packed
from tinylm.batches.rows import rows_in_order as rows_in_order
