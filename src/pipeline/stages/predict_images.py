"""stage=predict for a model of images: which classes it gives pictures of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.datasets.idx import read_idx
from pipeline.datasets.normalisation import Normalisation, normalised
from pipeline.datasets.pixels import MODES, SUFFIXES, WITH_TRANSPARENCY, images_in, pixels
from pipeline.errors import UserError, cut
from pipeline.machine.capability import Resolved
from pipeline.machine.regular_file import as_named, fault_of, open_regular
from pipeline.metrics import classification as metrics
from pipeline.models import Shapes
from pipeline.report.csv_file import csv_file
from pipeline.runs import receipt, weights
from pipeline.runs.beside import with_figures
from pipeline.runs.json_files import read_json
from pipeline.runs.result import Result, count
from pipeline.runs.run import Run
from pipeline.runs.saved import card_sha256, check_hashes, check_outputs, saved_card, saved_weights
from pipeline.runs.source_rows import source_rows
from pipeline.stages.measuring import input_dtype, said_of_margins
from pipeline.stages.predict_rows import array_sha256, in_batches

if TYPE_CHECKING:
    from pipeline.experiment import Experiment

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # as Pillow calls those of SUFFIXES
SHOWN = 20  # rows in the terminal's table; the CSV has them all
DRAWN = 24  # images on the sheet
NOTED = 3  # notes of single files; a folder may have thousands
HALF_A_STEP = 0.5 / 255  # beyond 0 or 1, as resized images of real numbers are: less than a byte can say


def check(images: Sequence[str]) -> None:
    """Refuse images that are not there or none. Raises UserError."""
    if not images:
        raise UserError(
            "stage.images=[]: name at least one image or IDX file, such as stage.images=[shoe.png]; a model of rows of "
            "numbers takes stage.rows=rows.csv"
        )
    for text in files_of(images):
        path = as_named(text)
        if fault := fault_of(path):
            raise UserError(f"stage.images={text}: {fault}")
        if _is_image(path):
            with _opened(path):  # its beginning; what of it is damaged shows when it is read
                pass
        elif path.suffix != ".gz" and not _begins_as_idx(path):
            raise UserError(f"stage.images={text}: neither an image ({', '.join(SUFFIXES)}) nor an IDX file")


def check_source(source: Path) -> None:
    """Refuse a run of something else than classes of images, or of others than are given. Raises UserError."""
    model_card(source)
    check_range(source)


def sha256(images: Sequence[str], invert: bool, source: Path) -> str:
    """Hash of the images, as the receipt has it. Raises UserError."""
    about = model_card(source)
    shapes = Shapes(tuple(about["x"]), tuple(about["outputs"]))
    return array_sha256(read_images(images, shapes.image, invert)[1])


def run(experiment: Experiment, resolved: Resolved, run: Run, images: Sequence[str], invert: bool) -> Result:
    """Predict. Raises UserError for images that are unreadable."""
    source = Path(str(experiment.settings.run))
    saved = saved_weights(source)
    about = model_card(source)
    hash_notes = check_hashes(source, {"weights": weights.digest(saved), "card": card_sha256(about)})
    shapes = Shapes(tuple(about["x"]), tuple(about["outputs"]))
    names, pictures, notes = read_images(images, shapes.image, invert)
    predict = experiment.backend.load().predictor(experiment, shapes, saved, resolved)
    x = inputs_of(about, pictures, input_dtype(resolved))
    logits = in_batches(predict, x, experiment.training.evaluation_batch_size)
    check_outputs(logits, "image {}", 0, source, resolved.precision)
    likely = metrics.probabilities(logits)
    seen = predict.observe(x[: experiment.training.evaluation_batch_size])
    written = receipt.of_saved(experiment, resolved, saved, array_sha256(pictures), seen)
    run.journal.write_receipt(written)
    unlike = [said] if (said := receipt.problems(written)) else []  # of few examples a product may run otherwise
    path = run.artifact("probabilities.csv")
    write_csv(path, names, likely, about["classes"])
    sheet = run.artifact("figures/predictions.png")
    rows = [(name, _best(row, about["classes"])) for name, row in zip(names[:SHOWN], likely, strict=False)]
    if len(names) > SHOWN:
        rows.append((f"and {len(names) - SHOWN:,} more", "in probabilities.csv"))
    rows += [*source_rows(source), ("probabilities", f"artifacts/{path.name}")]
    notes += [*unlike, *hash_notes, *said_of_margins(experiment.loss, [path.name])]
    result = Result(metrics=(count("images", len(names)),), table=tuple(rows), notes=tuple(notes))

    def draw() -> None:
        from pipeline.report import figures

        title = f"{source.name}: what it sees"
        figures.image_sheet(sheet, pictures[:DRAWN], likely[:DRAWN], about["classes"], None, title, names[:DRAWN])

    return with_figures(result, draw)


def model_card(source: Path) -> dict[str, Any]:
    """Image shape and class names of a saved run. Raises UserError where it has no model."""
    card = saved_card(source)
    if not {"task", "x", "outputs"} <= card.keys():
        raise UserError(
            f"run={source.name}: holds no trained model ({source / 'artifacts/model/card.json'} is missing or damaged)"
        )
    if "classes" not in card or len(card["x"]) != 3:
        takes_rows = len(card["x"]) == 1 and card["task"] == "classification"
        instead = "give it rows of numbers: stage.rows=rows.csv" if takes_rows else "stage.images is for classes"
        raise UserError(f"run={source.name}: its task is {card['task']} of shape {card['x']}; {instead}")
    if card["x"][2] not in MODES:
        raise UserError(
            f"run={source.name}: this model takes {card['x'][2]} channels; stage=predict gives images of 1 (grey), "
            "3 (colours) or 4 (colours and transparency)"
        )
    return card


def check_range(source: Path) -> None:
    """Refuse a model whose training images were not in [0, 1], where no scale says what brings them there.

    A card that was changed since is left to its hash, which the run compares. Raises UserError.
    """
    card = saved_card(source)
    if read_json(source / "receipt.json").get("card_sha256") not in (None, card_sha256(card)):
        return
    try:
        low, high = map(float, card.get("range", (0, 1)))
    except (TypeError, ValueError):
        raise UserError(f"run={source.name}: artifacts/model/card.json is damaged (range: {card['range']})") from None
    if low < -HALF_A_STEP or high > 1 + HALF_A_STEP:
        raise UserError(
            f"run={source.name}: was trained on images from {low:g} to {high:g}, and stage=predict gives images from "
            "0 to 1; train it on bytes, or on images from 0 to 1"
        )


def inputs_of(card: Mapping[str, Any], images: np.ndarray, dtype: str) -> np.ndarray:
    """Images (N, H, W, C) in [0, 1] as the saved model takes them."""
    normalisation = Normalisation.of_card(card)
    if normalisation is None:
        return images.astype(dtype)
    return normalised(images, *normalisation.steps(None, images.shape[1:]), dtype)


def read_images(
    paths: Sequence[str], shape: tuple[int, int, int], invert: bool
) -> tuple[list[str], np.ndarray, list[str]]:
    """Names, images (N, H, W, C) in [0, 1], and what had to be done to them."""
    names: list[str] = []
    found: list[np.ndarray] = []
    notes: list[str] = []
    files = files_of(paths)
    called = [as_named(text).name for text in files]
    for text in files:
        path = as_named(text)
        ground = "white" if invert else "black"
        images = _image(path, shape, ground, notes)[None] if _is_image(path) else _idx(path, shape)
        found.append(images)
        name = path.name if called.count(path.name) == 1 else text
        names += [name] if len(images) == 1 else [f"{name}[{number}]" for number in range(len(images))]
    together = np.concatenate(found)
    if invert:
        colours = slice(WITH_TRANSPARENCY - 1 if shape[2] == WITH_TRANSPARENCY else None)
        together[..., colours] = 1 - together[..., colours]
    more = [f"and {len(notes) - NOTED:,} more such notes"] if len(notes) > NOTED else []
    return names, together, [*_left_out(paths), *notes[:NOTED], *more]


def files_of(images: Sequence[str]) -> list[str]:
    """The files that are named, a folder by the images in it. Raises UserError for a folder without one."""
    files: list[str] = []
    for text in images:
        if not (folder := as_named(text)).is_dir():
            files.append(text)
        elif within := sorted(str(path) for path in folder.iterdir() if _is_image(path) and path.name[0] != "."):
            files += within
        else:
            raise UserError(f"stage.images={text}: a folder without an image directly in it ({', '.join(SUFFIXES)})")
    return files


def _left_out(images: Sequence[str]) -> list[str]:
    """A note on each folder that holds anything beside its images: photographs of another format, or a subfolder."""
    folders = {text: as_named(text) for text in images if as_named(text).is_dir()}
    beside = {
        text: sorted(path.name for path in folder.iterdir() if not _is_image(path) and path.name[0] != ".")
        for text, folder in folders.items()
    }
    return [f"stage.images={text}: leaves out {cut(', '.join(names), 300)}" for text, names in beside.items() if names]


def _image(path: Path, shape: tuple[int, int, int], ground: str, notes: list[str]) -> np.ndarray:
    """One image (H, W, C) in [0, 1], of the pixels that a dataset of files has too."""
    from PIL import Image

    height, width, channels = shape
    try:
        with _opened(path) as stored:
            deep = stored.mode.startswith("I;16")  # grey, which Pillow's own conversion clips at 255
            shallow = Image.fromarray(np.round(np.asarray(stored) / 257).astype(np.uint8)) if deep else stored
            frames = images_in(stored)
            image = pixels(shallow, (height, width), channels, f"stage.images={path}", ground)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"stage.images={path}: not a readable image ({error})") from error
    if frames > 1:
        notes.append(f"{path.name}: holds {frames} images; this is of the first")
    if shallow.size != (width, height):
        notes.append(f"{path.name}: resized from {shallow.width}x{shallow.height} to {width}x{height}")
    return image / np.float64(255)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _begins_as_idx(path: Path) -> bool:
    with open_regular(path) as file:
        return bytes(file.read(3)) == b"\0\0\x08"


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file as a Pillow image. Raises UserError for one that is none."""
    from PIL import Image, UnidentifiedImageError

    with open_regular(path) as file:
        try:
            stored = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError as error:
            raise UserError(f"stage.images={path}: not a {path.suffix[1:].upper()}, nor another image") from error
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"stage.images={path}: not a readable image ({error})") from error
        with stored:
            yield stored


def _idx(path: Path, shape: tuple[int, int, int]) -> np.ndarray:
    try:
        images = read_idx(path)
    except UserError as error:
        raise UserError(f"stage.images={error}") from error
    if images.ndim == 3:
        images = images[..., None]
    if not len(images):
        raise UserError(f"stage.images={path}: holds no image")
    if images.shape[1:] != shape:
        raise UserError(f"stage.images={path}: holds images of shape {images.shape[1:]}; this model takes {shape}")
    return images / np.float64(255)


def write_csv(path: Path, names: list[str], likely: np.ndarray, classes: list[str]) -> None:
    """One row an image: its name, the most probable class, and the probability of each."""
    with csv_file(path) as writer:
        writer.writerow(["image", "predicted", *classes])
        for name, row in zip(names, likely, strict=True):
            writer.writerow([name, classes[int(row.argmax())], *(f"{value:.6g}" for value in row)])


def _best(row: np.ndarray, classes: list[str]) -> str:
    return "  ".join(f"{classes[index]} {row[index]:.3f}" for index in np.argsort(-row)[:3])
