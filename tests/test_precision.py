"""Precision: every cell of the table runs as it says or is refused as it says; what ran is what was asked for.

The cells run one after the other in one process for each backend (`in_backend.precision`), which starts with its
process-wide switches set to values that no run needs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import in_backend
import pytest
from command import TORCH_THEN_WIDE
from findings import Precisions, Ran
from hypothesis import given
from hypothesis import strategies as st
from in_backend import BACKENDS, BETWEEN, CELLS, PLANTED, Outcomes, outcomes

from pipeline.backends.keras.hlo import allows_tf32, products
from pipeline.backends.keras.tf32 import by_program
from pipeline.errors import RunError, UserError, cut
from pipeline.machine.capability import Resolved, refusal, resolve, runnable
from pipeline.machine.device import Device, Gpu, Place, canonical, parse_size
from pipeline.machine.precision import AUTO, FORMATS, Format
from pipeline.runs import receipt
from pipeline.runs.fit import Fit, Observation
from pipeline.stages.training_table import precision_row

COMPUTE = {name: form.compute for name, form in FORMATS.items()} | {"mixed": "bfloat16"}
NO_TF32 = (
    "precision=tf32 with backend={backend} on cpu: TF32 exists only in the Tensor Cores of NVIDIA GPUs from Ampere on "
    "(compute capability 8.0); the nearest that runs is precision=fp32"
)
REFUSED = {(backend, "tf32"): NO_TF32.format(backend=backend) for backend in BACKENDS}
RUNS = [(backend, name) for backend in BACKENDS for name in CELLS if (backend, name) not in REFUSED]
PROBLEM = "precision=fp32 asks for float32 but the matrix products ran in bfloat16 (2), float32 (3)"
RUN_HERE = [pytest.param(*cell, marks=() if cell[0] == "torch" else pytest.mark.wide) for cell in RUNS]
REFUSED_HERE = [pytest.param(*cell, marks=() if cell[0] == "torch" else pytest.mark.wide) for cell in REFUSED]
LET_PASS = "; precision.strict=false lets the run pass and keeps this in the receipt"


LIGHTNING = {
    "fp64": "64-true",
    "fp32": "32-true",
    "tf32": "32-true",
    "fp16": "16-true",
    "bf16": "bf16-true",
    "mixed_fp16": "16-mixed",
    "mixed_bf16": "bf16-mixed",
}


def test_a_row_of_formats_is_all_that_names_a_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Lightning calls each stood in a separate table, as did Keras's policies and what a GPU needs."""
    from pipeline.backends.torch.own import lightning_precision

    assert {name: lightning_precision(name) for name in LIGHTNING} == LIGHTNING
    monkeypatch.setitem(FORMATS, "unscaled", Format(compute="float16", parameters="float32"))
    with pytest.raises(UserError, match="precision=unscaled with stage=lightning: Lightning scales the loss"):
        lightning_precision("unscaled")
    with pytest.raises(ValueError, match="parameters=float64: where products are in another dtype, frameworks keep f"):
        Format(compute="bfloat16", parameters="float64")


@pytest.fixture(scope="module")
def found() -> Outcomes[Precisions]:
    return outcomes(in_backend.precision)


def test_the_cells_are_all_there_are() -> None:
    assert set(CELLS) == {*FORMATS, AUTO}
    for backend in BACKENDS:
        refused = {name for name, why in runnable(backend, "cpu").items() if why}
        assert refused == {name for other, name in REFUSED if other == backend}


@pytest.mark.parametrize(("backend", "name"), RUN_HERE)
def test_a_cell_that_runs_is_seen_to_run_as_asked(found: Outcomes[Precisions], backend: str, name: str) -> None:
    receipt = found[backend].cells[name].receipt
    result = receipt["precision"]
    assert result["requested"] == name
    assert result["effective"] == ("mixed_bf16" if name == "mixed" else name)
    assert result["as_requested"] is True
    seen = result["observed"]["matrix_products"]
    assert seen.keys() == {COMPUTE[name]}
    # two convolutions and a Dense layer: forward, for the kernels, and for the inputs but that of the first layer
    assert seen[COMPUTE[name]] >= (7 if backend == "torch" else 8)  # torch counts one backward for both
    assert (result["observed"]["tf32"], result["observed"]["tf32_by"]) == (False, "no processor has TF32")
    assert receipt["device"]["effective"] == "cpu"
    assert all("cpu" in device.lower() for device in result["observed"]["devices"])


@pytest.mark.parametrize(("backend", "name"), REFUSED_HERE)
def test_a_cell_that_does_not_run_is_refused(found: Outcomes[Precisions], backend: str, name: str) -> None:
    assert found[backend].cells[name] == Ran(refused=REFUSED[backend, name])


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_what_the_compiler_made_of_it_is_shown(found: Outcomes[Precisions], backend: str) -> None:
    result = found[backend].cells["bf16"].receipt["precision"]["observed"]
    # XLA on this CPU widens: the receipt must not hide it behind the program that was asked for.
    after = result.get("matrix_products_after_compilation")
    assert (after is None) == (backend != "jax")  # TensorFlow leaves XLA off for convolutions on a CPU
    assert after is None or set(after) <= {"float32", "bfloat16"}


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_layers_with_dtypes_of_their_own_are_seen(found: Outcomes[Precisions], backend: str) -> None:
    result = found[backend].layers.receipt["precision"]
    assert result["as_requested"] is True
    assert result["observed"]["matrix_products"].keys() == {"float64", "bfloat16", "float32"}


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_fp32_after_every_other_precision_gives_the_same_bits(found: Outcomes[Precisions], backend: str) -> None:
    cells = found[backend].cells
    alone = cells["fp32"].receipt["weights_sha256"]
    assert found[backend].fp32_again.receipt["weights_sha256"] == alone
    others = {cells[name].receipt["weights_sha256"] for other, name in RUNS if other == backend}
    assert len(others) == len(RUNS) // 3 - 1  # all differ, but that mixed is mixed_bf16
    assert found[backend].fp32_after == dict.fromkeys(BETWEEN, alone)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_switches_are_put_back(found: Outcomes[Precisions], backend: str) -> None:
    result = found[backend].settings
    assert len(result) == len(CELLS) + 2
    for moment, settings in result.items():
        assert settings == result["at first"], moment


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize("way", ["blocks of 1", "blocks of 64", "streamed"])
def test_a_nan_stops_the_run_and_names_its_step(found: Outcomes[Precisions], way: str, backend: str) -> None:
    failed = found[backend].diverged[way].failed
    # infinite logits: how inf - inf is written is the framework's choice, the step is not
    assert re.fullmatch(
        r"the loss became (nan|inf) at step 2 \(epoch 1\); try a smaller optimizer\.learning_rate", str(failed)
    )


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_layer_behind_our_back_fails_the_run_if_strict(found: Outcomes[Precisions], backend: str) -> None:
    strict, lenient = (found[backend].planted[strict] for strict in (True, False))
    assert strict.failed == PROBLEM + LET_PASS
    assert lenient.failed is None
    for ran in (strict, lenient):  # the receipt of a failed run says it too
        assert ran.receipt["precision"]["as_requested"] is False
        assert ran.receipt["precision"]["problem"] == PROBLEM


CPU, GPU = (Resolved(place, "fp32", "as requested", "as requested") for place in (Place("cpu"), Place("gpu", 1)))
TENSORFLOW = "/job:localhost/replica:0/task:0/device:"


@pytest.mark.parametrize("name", ["cuda:1", f"{TENSORFLOW}GPU:1", "gpu:1"])
def test_each_frameworks_name_of_the_place_is_the_place(name: str) -> None:
    assert receipt.device_mismatch(GPU, Observation(how="", product_devices=Counter([name]))) is None
    problem = f"device={CPU.place} but the matrix products ran on gpu:1"
    assert receipt.device_mismatch(CPU, Observation(how="", product_devices=Counter([name]))) == problem


@pytest.mark.parametrize("names", [["cpu"], ["cpu:0"], [f"{TENSORFLOW}CPU:0"], ["cuda:0"], ["cuda:1", "cpu"], ["meta"]])
def test_products_on_another_device_fail_the_run_if_strict(names: list[str]) -> None:
    seen = Observation(how="", matmuls=Counter(["float32"]), product_devices=Counter(names))
    fit = Fit(weights={}, epochs=(), observed=seen, parameters=0, peak_memory={})
    for strict in (True, False):
        wanted = in_backend.experiment("torch", precision=("fp32", {"strict": strict}))
        found: dict[str, Any] = {"device": {"effective": "gpu:1"}, "precision": {}}
        error = None
        try:
            receipt.after(found, wanted, GPU, fit, "")
        except RunError as raised:
            error = str(raised)
        problem = found["device"]["problem"]
        assert problem.startswith("device=gpu:1 but the matrix products ran on ")
        assert problem.endswith(found["device"]["effective"])
        assert (found["device"]["as_requested"], found["precision"]["as_requested"]) == (False, True)
        assert error == (problem + LET_PASS if strict else None)


def test_a_process_that_computed_elsewhere_is_named_by_its_number() -> None:
    """Whatever the first one saw of itself."""
    devices = [("cuda:0", ["cuda:0"]), ("cuda:1", ["cuda:0"]), ("cuda:2", []), ("cuda:3", ["cpu", "cuda:3"])]
    processes = {"each": [{"device": device, "products_on": seen} for device, seen in devices]}
    said = (
        "device=cuda:1 of process 1 but its matrix products ran on cuda:0; "
        "device=cuda:3 of process 3 but its matrix products ran on cpu, cuda:3"
    )
    seen = Observation(how="", matmuls=Counter(["float32"]), product_devices=Counter(["cpu"]))
    found: dict[str, Any] = {"device": {}, "precision": {}, "processes": processes}
    assert receipt.add_observed(found, in_backend.experiment("torch"), CPU, seen) == said
    assert (found["device"]["as_requested"], found["device"]["problem"]) == (False, said)
    processes["each"][1:] = processes["each"][2:3]  # one that saw no product has computed nowhere
    assert receipt.elsewhere(processes) is None and receipt.elsewhere(None) is None


@pytest.mark.parametrize(  # the first step ends the long one
    ("strict", "epochs", "ends"),
    [
        ("true", 1_000_000, (1, "FAILED", PROBLEM)),
        pytest.param("false", 1, (0, "FINISHED", PROBLEM), marks=pytest.mark.wide),
    ],
)
@pytest.mark.wide
def test_a_mismatch_on_the_command_line(strict: str, epochs: int, ends: tuple[int, str, str], tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "planted.yaml").write_text("_target_: planted.Planted\n")
    words = ["model=planted", "dataset=digits", "training=quick", "tracking=none", "device=cpu"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pipeline", "--config-dir", str(tmp_path / "conf"), *words),
            *(f"precision.strict={strict}", f"output_dir={tmp_path / 'runs'}", f"training.epochs={epochs}"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PIPELINE_MODULES": "planted"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/status.json"))
    status, receipt = (json.loads((folder / f"{name}.json").read_text()) for name in ("status", "receipt"))
    assert (done.returncode, status["state"], receipt["precision"]["problem"]) == ends
    assert ("error: " + PROBLEM + LET_PASS in done.stderr) == (strict == "true")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_reader_of_xlas_programs(dtype: str) -> None:
    programs = outcomes(in_backend.programs)["jax"].of_dtype
    for name in ("dot", "convolution"):
        seen = Counter(products(programs[name, dtype]))
        assert sum(seen.values()) == 1
        (got,) = seen
        # a CPU without narrow products has them widened; nothing is ever narrowed
        assert got == dtype or (got == "float32" and dtype in ("bfloat16", "float16"))
        if got != dtype:
            assert " convert(" in programs[name, dtype]
    assert not list(products(programs["sum", dtype]))


def test_the_reader_knows_gpu_libraries_and_typed_operands() -> None:
    program = """
      ENTRY %main (p.1: bf16[8,8], p.2: bf16[8,8]) -> f32[8,8] {
        %p.1 = bf16[8,8]{1,0} parameter(0)
        %p.2 = bf16[8,8]{1,0} parameter(1)
        %gemm = (bf16[8,8]{1,0}, s8[64]{0}) custom-call(%p.1, %p.2), custom_call_target="__cublas$gemm"
        %wide = f32[8,8]{1,0} convert(%p.1)
        %sorted = f32[8,8]{1,0} custom-call(%wide), custom_call_target="__cub$DeviceRadixSort"
        ROOT %dot = f32[8,8]{1,0} dot(f32[8,8]{1,0} %wide, f32[8,8]{1,0} %wide), lhs_contracting_dims={1}
      }"""
    assert Counter(products(program)) == {"bfloat16": 1, "float32": 1}


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", ["dot", "convolution"])
def test_a_program_says_whether_it_allows_tf32(monkeypatch: pytest.MonkeyPatch, backend: str, name: str) -> None:
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    programs = outcomes(in_backend.programs)[backend].of_tf32
    for tf32 in (False, True):
        assert by_program(programs[name, tf32], "it") == (tf32, "the precision of the products in it")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert by_program(programs[name, True], "it")[0] is None


GEMM = """
  %a = f32[8,8]{1,0} parameter(0)
  %gemm = (f32[8,8]{1,0}, s8[64]{0}) custom-call(%a, %a), custom_call_target="__cublas$gemm", backend_config={CONFIG}
"""


@pytest.mark.parametrize(
    ("line", "tf32"),
    [
        (GEMM.replace("CONFIG", '{"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}'), False),
        (GEMM.replace("CONFIG", '{"precision_config":{"operand_precision":["DEFAULT","DEFAULT"]}}'), True),
        (
            GEMM.replace("CONFIG", '{"operand_precision":["HIGHEST","HIGHEST"],"algorithm":"ALG_DOT_TF32_TF32_F32"}'),
            True,
        ),
        (
            GEMM.replace("CONFIG", '{"operand_precision":["DEFAULT","DEFAULT"],"algorithm":"ALG_DOT_F32_F32_F32"}'),
            False,
        ),
        (GEMM.replace("CONFIG", '{"operand_precision":["HIGHEST","HIGHEST"],"algorithm":"ALG_UNSET"}'), False),
        (GEMM.replace("CONFIG", "{}"), None),
        (GEMM.replace("CONFIG", "{}") + "  %b = f32[8,8]{1,0} dot(%a, %a)\n", True),
        (GEMM.replace("f32", "bf16"), None),
        ("  %a = f32[8,8]{1,0} parameter(0)\n  %b = f32[8,8]{1,0} add(%a, %a)\n", None),
    ],
)
def test_tf32_in_the_programs_of_a_gpu(line: str, tf32: bool | None) -> None:
    """As XLA writes them there; recorded, not run on a GPU."""
    assert allows_tf32(line) is tf32


def test_tf32_that_was_set_and_not_seen_is_neither_as_requested_nor_a_failure() -> None:
    seen = Observation(how="", matmuls=Counter(["float32"]), product_devices=Counter(["cuda:1"]))
    fit = Fit(weights={}, epochs=(), observed=seen, parameters=0, peak_memory={})
    for precision, requested in (("tf32", None), ("fp32", True)):
        resolved = Resolved(GPU.place, precision, "", "")
        found: dict[str, Any] = {"device": {}, "precision": {}}
        receipt.after(found, in_backend.experiment("torch", precision=precision), resolved, fit, "")
        assert found["precision"]["as_requested"] is requested
        assert found["precision"].get("problem") == ("TF32: set, not seen" if requested is None else None)
        assert (found["precision"]["observed"]["tf32"], found["precision"]["observed"]["tf32_by"]) == (
            None,
            "set, not seen",
        )


def test_a_pass_of_few_rows_without_tf32_is_no_failure() -> None:
    """A GPU's library may use it for large products alone: one picture's class was refused."""
    seen = Observation(how="", matmuls=Counter(["float32"]), product_devices=Counter(["cuda:1"]), tf32=False)
    resolved = Resolved(GPU.place, "tf32", "", "")
    wanted = in_backend.experiment("torch", stage="predict", precision="tf32")
    found: dict[str, Any] = {"device": {}, "precision": {}}
    assert receipt.add_observed(found, wanted, resolved, seen) == ""
    assert found["precision"]["as_requested"] is None
    assert found["precision"]["problem"] == "TF32: none of the matrix products ran in it"
    assert precision_row(wanted, resolved, seen) == "tf32; matmuls in float32, none in TF32"


def test_another_dtype_is_not_hidden_by_tf32_that_was_not_seen() -> None:
    seen = Observation(how="", matmuls=Counter(["bfloat16"]), product_devices=Counter(["cuda:1"]))
    found: dict[str, Any] = {"device": {}, "precision": {}}
    wanted = in_backend.experiment("torch", precision="tf32")
    said = receipt.add_observed(found, wanted, Resolved(GPU.place, "tf32", "", ""), seen)
    assert said == "precision=tf32 asks for float32 but the matrix products ran in bfloat16 (1)"
    assert (found["precision"]["as_requested"], found["precision"]["problem"]) == (False, said)


@pytest.mark.parametrize("setting", ["processes", "split"])
def test_a_saved_run_of_several_devices_predicts_on_one(setting: str) -> None:
    seen = Observation(how="", matmuls=Counter(["float32"]), product_devices=Counter(["cuda:1"]), tf32=False)
    for stage, said in (("evaluate", ""), ("classifier", "device=gpu:1, gpu:2 but the matrix products ran on gpu:1")):
        wanted = in_backend.experiment("jax", stage=stage, device=("cpu", {setting: 2}))
        assert receipt.add_observed({"device": {}, "precision": {}}, wanted, GPU, seen) == said


@pytest.mark.parametrize(
    ("precision", "tf32", "said"),
    [
        ("tf32", True, None),
        ("fp32", False, None),
        ("fp32", True, "precision=fp32 but TF32 was on in the matrix products"),
        (
            "tf32",
            False,
            "precision=tf32 but none of the step's matrix products ran in TF32: a GPU's library may use it for large "
            "ones alone; choose precision=fp32, which is what ran, or a wider model",
        ),
    ],
)
def test_another_precision_than_was_asked_for_is_named(precision: str, tf32: bool, said: str | None) -> None:
    """Of a small net `TF32 was off` left its user to look for a setting that turns it on."""
    seen = Observation(how="", matmuls=Counter(["float32"]), tf32=tf32, tf32_by="the numbers")
    resolved = Resolved(GPU.place, precision, "", "")
    assert receipt.mismatch(in_backend.experiment("torch", precision=precision), resolved, seen) == said


# Notations of devices

indices = st.integers(0, 10**6)


def answer(ask: Callable[[], Any]) -> tuple[Any, str | None]:
    """What was returned, or the message of the refusal."""
    try:
        return ask(), None
    except UserError as error:
        return None, str(error)


kinds = st.sampled_from(["gpu", "cuda", "GPU", "Cuda"])
prefixes = st.sampled_from(["", "/", "/device:", "/job:localhost/replica:0/task:0/device:"])


@given(prefixes, kinds, indices)
def test_every_notation_of_a_gpu_is_the_same_gpu(prefix: str, kind: str, index: int) -> None:
    assert canonical(f"{prefix}{kind}:{index}") == f"gpu:{index}"
    assert canonical(f" {prefix}{kind} ") == "gpu"


@given(indices)
def test_the_names_that_we_give_are_read_back(index: int) -> None:
    place = Place("gpu", index)
    assert {canonical(name) for name in (str(place), place.torch, place.tensorflow, place.full)} == {f"gpu:{index}"}
    cpu = Place("cpu")
    assert {canonical(name) for name in (str(cpu), cpu.torch, cpu.tensorflow, cpu.full)} == {"cpu"}


@given(st.text())
def test_any_other_text_is_refused_with_the_choices(text: str) -> None:
    name, error = answer(lambda: canonical(text))
    if error is None:
        assert name in ("auto", "cpu", "gpu") or name.startswith("gpu:")
    else:
        assert error.startswith(f"device={cut(text)}: ")
        assert error.endswith("/job:localhost/replica:0/task:0/device:GPU:N")


def test_a_second_cpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"^device=cpu:1: the CPU is one device, cpu:0; choose from auto, cpu, gpu"):
        canonical("cpu:1")


UNITS = {"": 1, "B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30, "TB": 10**12}


@given(st.integers(1, 10**400), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_sizes(number: int, unit: str, space: str) -> None:
    assert parse_size(f"{number}{space}{unit}") == number * UNITS[unit]
    assert parse_size(f"{number}.5{space}{unit}") == number * UNITS[unit] + UNITS[unit] // 2


@given(st.text())
def test_what_is_no_size_is_refused(text: str) -> None:
    size, error = answer(lambda: parse_size(text))
    if error is None:
        assert size > 0
    else:
        result = f"device.memory_limit={cut(text)}: not a size; write bytes, or a number and a unit, as 768MiB or 1GB"
        assert error == result


def test_a_long_size_leaves_room_for_what_is_wrong_with_it() -> None:
    size, error = answer(lambda: parse_size("a" * 2000))
    assert size is None and error is not None
    assert error.endswith("... (2,000 characters): not a size; write bytes, or a number and a unit, as 768MiB or 1GB")


@pytest.mark.parametrize("text", ["0", "0.4B", "-1GB", "1 G", "1e9", "GB", ""])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=r"^device\.memory_limit=.*: not a size"):
        parse_size(text)


# The table

CAPABILITIES = [(3, 5), (5, 0), (5, 2), (5, 3), (6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("precision", [*FORMATS, AUTO])
def test_the_nearest_choice_runs(backend: str, capability: tuple[int, int], precision: str) -> None:
    gpus = (Gpu(0, "a GPU", 8 * 2**30, capability),)
    for device in ("cpu", "gpu", "auto"):
        wanted = Device(name=device)
        resolved, error = answer(partial(resolve, backend, wanted, precision, gpus))
        if error is not None:
            nearest = error.rpartition("the nearest that runs is precision=")[2]
            assert resolve(backend, wanted, nearest, gpus).precision == nearest
        else:
            gpu = None if resolved.place.kind == "cpu" else gpus[0]
            assert refusal(backend, resolved.place.kind, resolved.precision, gpu) is None
            assert (resolved.precision == precision) == (precision != AUTO)


@pytest.mark.parametrize(
    ("capability", "precision", "nearest"),
    [
        ((7, 5), "bf16", "fp16"),
        ((7, 5), "mixed_bf16", "mixed_fp16"),
        ((7, 5), "tf32", "fp32"),
        ((3, 5), "bf16", "fp32"),  # fp16 is refused there too
        ((3, 5), "mixed_bf16", "fp32"),
    ],
)
def test_what_old_gpus_are_offered(capability: tuple[int, int], precision: str, nearest: str) -> None:
    gpu = Gpu(0, "an old GPU", 8 * 2**30, capability)
    with pytest.raises(UserError, match=f"^precision={precision} with backend=jax on gpu:0: .*=({nearest})$"):
        resolve("jax", Device(name="gpu"), precision, (gpu,))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_gpus_that_can_be_chosen_are_those_that_are_there(count: int) -> None:
    gpus = tuple(Gpu(index, f"GPU {index}", 8 * 2**30, (8, 0)) for index in range(count))
    for index in range(count):
        assert resolve("torch", Device(name=f"gpu:{index}"), "fp32", gpus).place == Place("gpu", index)
    for index in (count, count + 1, 99):
        there = ", ".join(f"gpu:{gpu.index} ({gpu.name})" for gpu in gpus)
        with pytest.raises(UserError) as caught:
            resolve("torch", Device(name=f"gpu:{index}"), "fp32", gpus)
        assert str(caught.value) == f"device=gpu:{index}: no such GPU; choose from {there}, cpu"


def test_mixed_is_what_the_device_does_best() -> None:
    def mixed(capability: tuple[int, int]) -> str:
        return resolve("torch", Device(name="gpu"), AUTO, (Gpu(0, "", 1, capability),)).precision

    assert [mixed(found) for found in ((7, 0), (7, 5), (8, 0), (9, 0))] == ["mixed_fp16"] * 2 + ["mixed_bf16"] * 2
    # no Tensor Cores: P100 has float16 at twice float32's rate, P4 at a 64th, Maxwell not at all
    assert [mixed(found) for found in ((6, 0), (6, 1), (5, 0))] == ["mixed_fp16", "fp32", "fp32"]
