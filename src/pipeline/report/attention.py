"""Attention maps: a figure, and a page to click through layers and heads. The page needs nothing from outside."""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm

from pipeline.cli.streams import printable
from pipeline.report.canvas import canvas, save, without_glyph

MOST = 8  # layers, and heads, in the figure
COLOUR_MAP, SCALE = "Blues", PowerNorm(0.5, 0, 1)
TITLE_WIDTH = 4.5  # inches, of a figure of few heads
EDGE = 0.012  # of the width, left of the names of layers
LETTER = 0.1  # inches of a token beside a map
TEMPLATE = Path(__file__).with_name("attention_page.html")
FEW = 32  # tokens that are written beside a map; a text of more stands below all maps
LETTERS = 15  # of that text, in an inch
SIGNS = {"\n": "↵", " ": "␣", "\t": "⇥"}


def figure(
    path: Path, maps_LHTS: np.ndarray, title: str, attending: Sequence[str] = (), attended: Sequence[str] = ()
) -> None:
    """A row for each layer, a column for each head (up to MOST of them). Colour: the square root of the weight.

    `attending` (T), `attended` (S): the texts of the tokens, where they are given: beside each map, or below all.
    """
    below = [texts for texts in dict.fromkeys((tuple(attended), tuple(attending))) if len(texts) > FEW]
    attending, attended = (texts if len(texts) <= FEW else () for texts in (attending, attended))
    layers, heads = (min(size, MOST) for size in maps_LHTS.shape[:2])
    width, height = (max(1.5, LETTER * len(texts)) for texts in (attended, attending))
    across = max(width * heads + 1.4, TITLE_WIDTH)
    lines = [line for texts in below for line in textwrap.wrap(_text(texts), int(LETTERS * across))]
    drawn = canvas(across, height * layers + 0.6 + 0.15 * len(lines))
    drawn.get_layout_engine().set(rect=(EDGE, 0, 1 - EDGE, 1))  # type: ignore[call-arg,union-attr]
    grid = drawn.subplots(layers, heads, squeeze=False)
    for (layer, head), axes in np.ndenumerate(grid):
        axes.imshow(maps_LHTS[layer, head], cmap=COLOUR_MAP, norm=SCALE, interpolation="nearest")
        axes.set_xticks(range(len(attended)), _signs(attended), fontsize=6, parse_math=False)
        axes.set_yticks(range(len(attending)), _signs(attending), fontsize=6, parse_math=False)
        axes.tick_params(length=0, pad=1)
        if layer == 0:
            axes.set_title(f"head {head}", fontsize=8)
        if head == 0:
            axes.set_ylabel(f"layer {layer}", fontsize=8)
    scale = drawn.colorbar(ScalarMappable(SCALE, COLOUR_MAP), ax=grid, aspect=30)
    scale.set_label("attention weight", fontsize=8)
    scale.ax.tick_params(labelsize=7)
    cut = "" if maps_LHTS.shape[:2] == (layers, heads) else f" (the first {layers} layers and {heads} heads)"
    drawn.suptitle(f"{title}{cut}\nrow: the position; column: what it attends to", fontsize=9)
    drawn.supxlabel("\n".join(lines), fontsize=7, parse_math=False)
    save(drawn, path)


def boxes(tokens: Sequence[str]) -> int:
    """How many characters of the tokens the figure cannot show; the page can, by the browser's fonts."""
    return len(without_glyph("".join(_signs(tokens))))


def page(
    path: Path, maps_LHTS: np.ndarray, tokens: Sequence[str], title: str, attended: Sequence[str] | None = None
) -> None:
    """One HTML file: a map to point at, and the text coloured by what the chosen token attends to.

    `tokens` (T): the text of each; `attended` (S): of those that they attend to, where it is another sequence. Weights
    are kept as bytes: 0 to 255 for 0 to 1.
    """
    layers, heads, length, width = maps_LHTS.shape
    data = {
        "title": title,
        "layers": layers,
        "heads": heads,
        "length": length,
        "width": width,
        "tokens": list(tokens),
        "signs": _signs(tokens),
        "attended": None if attended is None else _signs(attended),
        "weights": base64.b64encode(np.round(maps_LHTS * 255).astype(np.uint8).tobytes()).decode(),
    }
    text = json.dumps(data).replace("<", "\\u003c")  # so that no token ends the script
    path.write_text(TEMPLATE.read_text(encoding="utf-8").replace("/*DATA*/null", text), encoding="utf-8")


def _text(tokens: Sequence[str]) -> str:
    """The text that the tokens make, with a sign for the end of a line."""
    return printable("".join(tokens).replace("\n", SIGNS["\n"]))


def _signs(tokens: Sequence[str]) -> list[str]:
    """With a sign for what would not be seen."""
    return ["".join(SIGNS.get(letter) or printable(letter) for letter in token) for token in tokens]
