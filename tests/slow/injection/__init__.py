"""What the slow proofs share: faults at the n-th call, power cuts, strace, and the table of counts."""
