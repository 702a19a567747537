"""Read an export back without this package: `python -I read_back.py <format> <folder> <x.npy> <read.npz> <batch>`.

`x.npy` has the inputs; `read.npz` gets the `outputs` of all, computed in batches, those of the first example `alone`,
and each tensor as `tensor/<name>`, of bfloat16, which NumPy lacks, as float32. It imports nothing of this package and
refuses that anything else does. Keras computes on the backend that KERAS_BACKEND names.
"""

import contextlib
import sys
from pathlib import Path

ONNX = {"onnx": "model.onnx", "onnx_int8": "model_int8.onnx"}  # the file of each format


class Without:
    """A finder that makes our package one that is not there."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] == "pipeline":
            raise ModuleNotFoundError(f"{name}: not in this process")


def read(form, folder):  # type: ignore[no-untyped-def]
    """A function from a batch to outputs (None for a file of weights alone), and tensors by name."""
    if form == "safetensors":
        with contextlib.suppress(ModuleNotFoundError):
            import ml_dtypes  # noqa: F401  # lets NumPy know bfloat16 by its name
        from safetensors.numpy import load_file

        tensors = load_file(folder / "model.safetensors")
        narrow = {name: one.astype("float32") for name, one in tensors.items() if one.dtype.name == "bfloat16"}
        return None, {**tensors, **narrow}
    if form in ONNX:
        import onnxruntime

        session = onnxruntime.InferenceSession(folder / ONNX[form], providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0], {}
    if form == "saved_model":
        import tensorflow as tf

        loaded = tf.saved_model.load(str(folder / "saved_model"))
        return lambda x: loaded.serve(tf.constant(x)).numpy(), {}
    if form == "keras":
        import keras

        model = keras.saving.load_model(folder / "model.keras", compile=False)
        return lambda x: keras.ops.convert_to_numpy(model(x, training=False)), {}
    return read_torch(form, folder)


def read_torch(form, folder):  # type: ignore[no-untyped-def]
    """As `read`, of the formats that are torch's own."""
    import torch

    torch.set_grad_enabled(False)
    if form == "torch_export":
        program = torch.export.load(folder / "model.pt2").module()
        return lambda x: program(torch.from_numpy(x)).numpy(), {}
    script = torch.jit.load(folder / "model.torchscript.pt")
    stored = torch.load(folder / "state_dict.pt", weights_only=True)
    tensors = {name: one.float() if one.dtype == torch.bfloat16 else one for name, one in stored.items()}
    return lambda x: script(torch.from_numpy(x)).numpy(), {name: one.numpy() for name, one in tensors.items()}


def main(form, folder, inputs, target, batch):  # type: ignore[no-untyped-def]
    """Read, compute all of x and its first example alone, and write."""
    sys.meta_path.insert(0, Without())
    import numpy as np

    run, tensors = read(form, Path(folder))
    found = {f"tensor/{name}": tensor for name, tensor in tensors.items()}
    if run is not None:
        x, size = np.load(inputs, mmap_mode="r"), int(batch)
        parts = [run(np.array(x[first : first + size])) for first in range(0, len(x), size)]
        found |= {"outputs": np.concatenate(parts), "alone": run(np.array(x[:1]))}
    np.savez(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
