"""`torch.compile` must look at hooks: a norm hangs on its layer as one.

torch's compiler keeps what it made of a class's code, and takes it again for any module that its guards find
alike. By default no guard looks at hooks. So of two networks of one class, the plain one compiled first, the
converted one would run without its norms, and nobody would be told: layers without a bias look the same.
"""

from __future__ import annotations

import sys
from functools import cache


@cache
def guard_hooks() -> None:
    """From now on compiled code is for modules with the same hooks; what was compiled before is dropped.

    It acts once in a process. The import takes a second or two, which the first optimizer would take too.
    """
    in_use = "torch._dynamo" in sys.modules
    from torch import _dynamo

    _dynamo.config.skip_nnmodule_hook_guards = False
    if in_use:  # compiled code may exist without such guards: the next call recompiles it
        _dynamo.reset()
