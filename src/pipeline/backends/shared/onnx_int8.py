"""A float32 ONNX program quantized to eight-bit integers by ONNX Runtime, and the passes of both on the CPU."""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.backends.shared.exported import QUIET, quietly
from pipeline.errors import RunError
from pipeline.machine.host import cpu
from pipeline.machine.memory import process_peak_bytes
from pipeline.raised import in_one_line
from pipeline.runs.fit import Passes

if TYPE_CHECKING:
    import onnx

CALIBRATION_BATCH = 64  # examples that are passed at once, to see between which values activations lie
VNNI = {"avx512_vnni", "avx_vnni"}  # as /proc/cpuinfo calls the instructions that add products of bytes in 32 bits
ARM = ("aarch64", "arm64")
# Operators of ONNX and of com.microsoft (ContribOperators.md of ONNX Runtime) that multiply matrices or convolve.
IN_INTEGERS = {
    *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"),
    *("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulInteger16"),
    *("QAttention", "QGemm"),
}
IN_FLOAT = {
    *("Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul", "RNN"),
    *("FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention", "NhwcFusedConv", "TransposeMatMul"),
}


@dataclass(frozen=True)
class Scheme:
    """How a processor multiplies bytes best. `activations`: "uint8" or "int8"; `reduced`: weights use seven bits."""

    activations: str
    reduced: bool
    why: str


def scheme_for(machine: str, vector: str) -> Scheme:
    """The scheme for an architecture and its vector instructions, as ONNX Runtime recommends it.

    Without VNNI an x86 processor adds two products of an unsigned and a signed byte in 16 bits, which overflow
    (VPMADDUBSW saturates): weights of seven bits cannot. Source: `quantize_static`, "Choosing parameters for CPU
    inference", and onnxruntime.ai/docs/performance/model-optimizations/quantization.html.
    """
    if machine in ARM:
        return Scheme("int8", False, f"{machine} multiplies signed bytes")
    found = sorted(VNNI & set(vector.split()))
    if found:
        return Scheme("uint8", False, f"the processor has {found[0]}, whose sums do not overflow")
    return Scheme("uint8", True, "the processor has no VNNI, and sums of products of whole bytes could overflow")


def scheme_here() -> Scheme:
    """The scheme for this processor."""
    return scheme_for(platform.machine(), cpu()["vector"])


def quantize(source: Path, target: Path, x: np.ndarray, scheme: Scheme) -> None:
    """Write the program `source` with weights in int8, a scale for each channel, and activations in bytes whose range
    is that on the calibration examples x. Raises RunError where ONNX Runtime cannot."""
    runtime = _runtime()
    with quietly():
        from onnxruntime import quantization

        kind = quantization.QuantType
        try:
            quantization.quantize_static(
                source,
                target,
                Calibration(runtime, source, x),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                reduce_range=scheme.reduced,
                activation_type=kind.QUInt8 if scheme.activations == "uint8" else kind.QInt8,
                weight_type=kind.QInt8,
                calibrate_method=quantization.CalibrationMethod.MinMax,
            )
        except Exception as error:  # its many types, of a graph that it does not know
            raise RunError(
                f"stage.format=onnx_int8: ONNX Runtime cannot quantize this model ({in_one_line(error)[:200]}); "
                "stage.format=onnx writes it in float32"
            ) from error


class Calibration:
    """Batches of x, as `quantize_static` asks for them (its CalibrationDataReader)."""

    def __init__(self, runtime: ModuleType, program: Path, x: np.ndarray) -> None:
        self.name = _session(runtime, program).get_inputs()[0].name
        self.batches: Iterator[np.ndarray] = (
            x[first : first + CALIBRATION_BATCH] for first in range(0, len(x), CALIBRATION_BATCH)
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {self.name: batch}


class OnnxPasses(Passes):
    """An ONNX program on the CPU, by ONNX Runtime's own number of threads. `operators`: those that run, counted."""

    def __init__(self, program: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            self.session = _session(_runtime(), program, optimized)
            self.operators = operators_in(optimized)
        self.name = self.session.get_inputs()[0].name

    def settings(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def forward(self, x: np.ndarray) -> np.ndarray:
        outputs: np.ndarray = self.session.run(None, {self.name: x})[0]
        return outputs

    def flop(self, x: np.ndarray) -> None:  # the session does not count them
        return None

    def peak_memory(self) -> dict[str, int]:
        return {"process_bytes": process_peak_bytes()}


def operators_in(program: Path) -> Counter[str]:
    """The operators of a program by name, those of its branches and loops too."""
    import onnx

    return Counter(node.op_type for node in _nodes(onnx.load(program, load_external_data=False).graph))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


@dataclass(frozen=True)
class Operators:
    """Of a program: matrix products and convolutions `in_integers` and `in_float`, and the `others`, each counted."""

    in_integers: Mapping[str, int]
    in_float: Mapping[str, int]
    others: Mapping[str, int]

    @classmethod
    def of(cls, counted: Mapping[str, int]) -> Operators:
        """Raises RunError where no product runs in integers: such a program is not int8, whatever it is called."""
        integers, floats = (
            {name: number for name, number in counted.items() if name in names} for names in (IN_INTEGERS, IN_FLOAT)
        )
        if not integers:
            left = f": {listed(floats)} in float" if floats else "; it has none"
            raise RunError(
                "stage.format=onnx_int8: no matrix product or convolution of the quantized program runs in "
                f"integers{left}; use stage.format=onnx"
            )
        others = {name: number for name, number in counted.items() if name not in {**integers, **floats}}
        return cls(integers, floats, others)


def listed(counted: Mapping[str, int]) -> str:
    """`2 QLinearConv, 1 QGemm`."""
    return ", ".join(f"{number} {name}" for name, number in sorted(counted.items(), key=lambda one: (-one[1], one[0])))


def _session(runtime: ModuleType, program: Path, optimized: Path | None = None) -> Any:
    """`optimized`: where the graph is written as it runs."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors: a graph that is written is for this processor alone, which it warns of
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return runtime.InferenceSession(program, options, providers=["CPUExecutionProvider"])


def _runtime() -> ModuleType:
    """ONNX Runtime, which reads when it is imported whether it may send what it reads to its maker."""
    added = {name: value for name, value in QUIET.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import onnxruntime
    finally:
        for name in added:
            del os.environ[name]
    runtime: ModuleType = onnxruntime
    return runtime
