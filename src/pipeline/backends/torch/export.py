"""A torch model in formats that others read: weights (safetensors, a state dict), and programs with its outputs."""

from __future__ import annotations

import contextlib
import io
import re
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.backends.shared.exported import Exported, quietly
from pipeline.backends.torch.lowering import Lowering
from pipeline.backends.torch.net import made
from pipeline.backends.torch.settings import runtime_settings
from pipeline.datasets import Data
from pipeline.datasets.normalisation import Normalisation
from pipeline.errors import RunError
from pipeline.machine.capability import Resolved
from pipeline.models import weights
from pipeline.raised import in_one_line
from pipeline.runs.weights import Weights

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

ONE_FILE_BYTES = 1 << 30  # ONNX's file holds two GiB at most; larger weights lie beside it


def write(
    experiment: Experiment,
    data: Data,
    saved: Weights,
    resolved: Resolved,
    form: str,
    folder: Path,
    x: np.ndarray,
) -> Exported:
    """Write the model with the weights `saved` as `form` into `folder`. `x`: inputs to trace it with.

    A program takes x as `Data.scaled` gives it, and normalises it first. Raises RunError for an operation that the
    format cannot hold.
    """
    lowering = Lowering(resolved)
    with runtime_settings(experiment, resolved), quietly(), lowering.defaults():
        net = lowering.moved(made(experiment.data_model, data.task.shapes))
        weights.to_torch(net, saved, "the saved run")
        net.eval().requires_grad_(False)
        example = lowering.entered(torch.from_numpy(x.copy()))
        if data.normalisation is not None:
            _normalise_first(net, data.normalisation, example.dtype)
        WRITERS[form](net, example, folder)
    state = net.state_dict()
    dtypes = {str(one.dtype).removeprefix("torch.") for one in net.parameters()} or {str(example.numpy().dtype)}
    of_numpy = {name: one.float() if one.dtype == torch.bfloat16 else one for name, one in state.items()}
    tensors = {name: one.numpy() for name, one in of_numpy.items()} if form in ("safetensors", "torch") else {}
    return Exported(form != "safetensors", tuple(sorted(dtypes)), tensors)


def _normalise_first(net: torch.nn.Module, by: Normalisation, dtype: torch.dtype) -> None:
    """Let a module normalise what it is given; what it holds by name stays as it is."""
    mean, std = (torch.tensor(each, dtype=dtype) for each in (by.mean, by.std))

    def normalised(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (inputs[0] - mean) / std, *inputs[1:]

    net.register_forward_pre_hook(normalised, prepend=True)


def _safetensors(net: torch.nn.Module, example: torch.Tensor, folder: Path) -> None:
    from safetensors.torch import save_file

    # Tied weights share memory, which the format refuses: each name gets its own copy.
    tensors = {name: one.contiguous().clone() for name, one in net.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _torch(net: torch.nn.Module, example: torch.Tensor, folder: Path) -> None:
    torch.save(net.state_dict(), folder / "state_dict.pt")
    with _said("torch", net):
        torch.jit.trace(net, example, check_trace=False).save(folder / "model.torchscript.pt")
    _without_places(folder / "model.torchscript.pt")


def _without_places(program: Path) -> None:
    """Leave out of a TorchScript file where the code of its operations lies on this machine, and the hash of all that:
    the file would be another on each. torch reads both where they are there; the errors of a program name its code."""
    shorter = program.with_suffix(".new")
    with zipfile.ZipFile(program) as whole, zipfile.ZipFile(shorter, "w") as kept:
        for record in whole.infolist():
            if not record.filename.endswith((".debug_pkl", ".data/serialization_id")):
                kept.writestr(zipfile.ZipInfo(record.filename), whole.read(record))  # which has no time
    shorter.replace(program)


def _torch_export(net: torch.nn.Module, example: torch.Tensor, folder: Path) -> None:
    torch.export.save(_program("torch_export", net, example), folder / "model.pt2")


def _onnx(net: torch.nn.Module, example: torch.Tensor, folder: Path) -> None:
    program = _program("onnx", net, example)
    large = sum(one.nbytes for one in net.state_dict().values()) > ONE_FILE_BYTES
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            torch.onnx.export(
                program,
                (),
                folder / "model.onnx",
                external_data=large,
                verbose=False,
                input_names=["x"],
                output_names=["outputs"],
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise RunError(_of_onnx(program, error)) from error


WRITERS: dict[str, Callable[[torch.nn.Module, torch.Tensor, Path], None]] = {
    "safetensors": _safetensors,
    "torch": _torch,
    "torch_export": _torch_export,
    "onnx": _onnx,
}


def _program(form: str, net: torch.nn.Module, example: torch.Tensor) -> torch.export.ExportedProgram:
    """The net as torch.export traces it, for batches of any size."""
    with _said(form, net):
        sizes = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.export.export(net, (example,), dynamic_shapes=sizes)
    for module in program.graph_module.modules():  # bodies of conditions, too
        for node in module.graph.nodes:  # where the code lies on this machine: the file would be another on each
            node.meta.pop("stack_trace", None)
    return program


@contextlib.contextmanager
def _said(form: str, net: torch.nn.Module) -> Iterator[None]:
    """Turn what tracing raises into one message: the layer that was entered last, and the line of its code."""
    entered: list[str] = []
    hooks = []

    def leave(*_: object) -> None:
        entered.pop()

    for name, module in net.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: entered.append(name)))
        hooks.append(module.register_forward_hook(leave))
    try:
        yield
    except Exception as error:  # torch.export's many types, and whatever a model's code raises
        raise RunError(
            f"stage.format={form}: cannot hold {_operation(error)}{_layer(net, entered)}; {in_one_line(error)[:200]}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _operation(error: BaseException) -> str:
    """The line of the model's own code at which tracing stopped."""
    own = str(Path(torch.__file__).parent)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith((own, "<"))]
    frames = [one for one in frames if one.filename != __file__]
    if not frames:
        return "an operation"
    return f"{frames[-1].line!r} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _layer(net: torch.nn.Module, entered: list[str]) -> str:
    if not entered:
        return ""
    name = entered[-1]
    kind = type(net.get_submodule(name)).__name__
    return f" of layer {name} ({kind})" if name else f" of the model ({kind})"


def _of_onnx(program: torch.export.ExportedProgram, error: BaseException) -> str:
    """The operator that ONNX has none for, and the layer that uses it."""
    text = ""
    cause: BaseException | None = error
    while cause is not None:
        text += str(cause)
        cause = cause.__cause__ or cause.__context__
    found = re.search(r"torch\.ops\.([\w.]+)|OpOverload\(op='([\w.:]+)'|for ([\w]+[.:]+[\w.]+)", text)
    if not found:
        return f"stage.format=onnx: {in_one_line(error)[:200]}"
    operator = (found[1] or found[2] or found[3]).replace("::", ".")
    short = operator.split(".")[1]  # ONNX decomposes aten.special_bessel_j0 to prims.bessel_j0 before it gives up
    layer = next((_of_node(node) for node in program.graph.nodes if short in str(node.target)), "")
    return f"stage.format=onnx: cannot hold {operator}{layer}; ONNX has no such operator"


def _of_node(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return ""
    path, kind = stack[-1]
    kind = (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]
    return f" of layer {path} ({kind})" if path else f" of the model ({kind})"
