"""Figures of matplotlib as files that depend on neither date nor settings of the user."""

import contextlib
import csv
import functools
import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq_cli import plugins
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_METADATA = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
# Okabe & Ito 2008, "Color Universal Design": distinct with any kind of color vision. Curves beyond
# these have other dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
GRAY = "#777777"
# Fonts for scripts that DejaVu Sans, which comes with matplotlib, lacks.
_DEFAULT_FONT = "DejaVu Sans"
FONTS = (
    *("Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "PingFang SC"),
    *("Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "WenQuanYi Micro Hei"),
    *("Noto Sans Arabic", "Noto Naskh Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari"),
    *("Noto Sans Thai", "Arial Unicode MS"),
)
_reported: set[int] = set()  # characters without a font, already reported


def check_output_paths(
    paths: Sequence[Path], suffixes: Sequence[str] = (".png", ".svg", ".pdf", ".csv")
) -> None:
    """Raise UserError for a file that cannot be written, and for a figure without matplotlib."""
    for path in paths:
        if path.suffix.lower() not in suffixes:
            raise UserError(f"{path}: the name must end in {', '.join(suffixes)}")
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
        if paths.count(path) > 1:
            raise UserError(f"--output {path} is given twice")
    if any(is_figure(path) for path in paths):
        plugins.require("matplotlib", "plot", "a figure")


def is_figure(path: Path) -> bool:
    return path.suffix.lower() in _METADATA


def write_curves(
    path: Path,
    draw: "Callable[[], Figure]",
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Write rows as CSV, or the figure that `draw` returns, as the suffix says."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        data = text.getvalue().encode("utf-8", "surrogateescape")
    else:
        data = figure_bytes(draw(), suffix)
    write_atomic(path, data)


@contextlib.contextmanager
def default_style() -> Iterator[None]:
    """Set matplotlib's defaults, so that figures do not depend on the user's matplotlibrc."""
    plugins.require("matplotlib", "plot", "a figure")
    from matplotlib import style

    with style.context(["default", {"svg.hashsalt": "seq2seq-cli"}]):
        yield


@default_style()
def figure_bytes(figure: "Figure", suffix: str) -> bytes:
    """Return the figure as a file; the same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format=suffix[1:], metadata=_METADATA[suffix], dpi=150)
    return file.getvalue()


def fonts_for(text: str) -> tuple[list[str], dict[int, str]]:
    """Return installed fonts that have the characters of a text, and □ for those that none has."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    missing = set(map(ord, text))
    families = []
    for family in (_DEFAULT_FONT, *(font for font in FONTS if font in installed)):
        if covered := missing & _characters(family):
            families.append(family)
            missing -= covered
    if new := {c for c in missing - _reported if not chr(c).isspace()}:
        _reported.update(new)
        logger.warning(
            f"no installed font known to this program has {short(''.join(map(chr, sorted(new))))}: "
            "the figure shows □ instead (the HTML page uses the fonts of the browser)"
        )
    return families or [_DEFAULT_FONT], dict.fromkeys(missing, "□")


@functools.cache
def _characters(family: str) -> frozenset[int]:
    from matplotlib import font_manager

    font = font_manager.get_font(font_manager.findfont(family))
    return frozenset(font.get_charmap())
