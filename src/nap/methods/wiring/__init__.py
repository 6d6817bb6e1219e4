"""Which entries of which parameters belong to each hidden unit, found by running the model once.

`find_wiring` records one forward (`tape`), asks which unit each entry of a tensor depends on (`sparsity`),
and assembles the answer (`assembly`) into a `Wiring`: a value to print, test and act on.
"""

from nap.methods.wiring.assembly import find_wiring
from nap.methods.wiring.entries import Entries
from nap.methods.wiring.units import Units, Wiring, unit_activity

__all__ = ["Entries", "Units", "Wiring", "find_wiring", "unit_activity"]
