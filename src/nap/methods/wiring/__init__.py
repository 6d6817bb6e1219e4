"""The parameter entries of each hidden unit, found by running the model once.

`find_wiring` records one forward pass (`tape`), finds the unit that each tensor entry depends on (`sparsity`)
and builds a `Wiring` (`assembly`).
"""

from nap.methods.wiring.assembly import find_wiring
from nap.methods.wiring.entries import Entries
from nap.methods.wiring.units import Units, Wiring, unit_activity

__all__ = ["Entries", "Units", "Wiring", "find_wiring", "unit_activity"]
