"""The few calls that know about ranks: processes that train one model together, started by torchrun.

`launch` reads what torchrun says (and loads no torch), `ranks` lets processes agree, `sharding` spreads
gradients and weights over them.
"""
