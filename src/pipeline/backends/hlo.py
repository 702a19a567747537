"""Reading XLA's optimized program (HLO text): which dtypes the matrix products have after the compiler's passes."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_DEFINED = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = \(?(?P<dtype>[a-z]+\d*)\[")
_PRODUCT = re.compile(r"\b(?:dot|convolution)\(%?(?P<operand>[\w.-]+)")
_LIBRARY = re.compile(r"custom-call\((?:[a-z]+\d*\[[^ ]* )?%?(?P<operand>[\w.-]+).*(?:gemm|matmul|conv)", re.IGNORECASE)


def products(hlo: str) -> Iterator[str]:
    """The dtype of the first operand of every dot, convolution and library matrix product in `hlo`."""
    dtypes: dict[str, str] = {}
    for line in hlo.splitlines():
        # a computation's head names its parameters and their types
        dtypes |= dict(re.findall(r"%?([\w.-]+): ([a-z]+\d*)\[", line.partition(" -> ")[0]))
        defined = _DEFINED.match(line)
        if not defined:
            continue
        dtypes[defined["name"]] = defined["dtype"]
        product = _PRODUCT.search(line) or _LIBRARY.search(line)
        if product:
            dtype = dtypes.get(product["operand"], defined["dtype"])
            yield _NAMES.get(dtype, dtype)
