"""The pictures of docs/operation.md as SVG text: boxes, labels and arrows. `python -m docs.generate` writes them."""

from __future__ import annotations

from collections.abc import Sequence

PAPER, INK, QUIET = "#ffffff", "#1f2933", "#52606d"
ROTATED, PLAIN, SCALE, WEIGHT = "#bee3f8", "#edf2f7", "#fde68a", "#c6f6d5"
PAIRS = ("#90cdf4", "#fbb6ce", "#fcd34d", "#9ae6b4")
WIDTH = 860


class Picture:
    """Shapes in pixels, x to the right, y down."""

    def __init__(self, height: int, title: str) -> None:
        self._height, self._title, self._shapes = height, title, list[str]()

    def box(self, x: float, y: float, width: float, text: str = "", fill: str = PLAIN, height: float = 30) -> None:
        """A rectangle with a label in its middle."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{INK}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, anchor="middle")

    def text(self, x: float, y: float, text: str, anchor: str = "start", color: str = INK, size: int = 14) -> None:
        """A line of text; y is its base line."""
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{escaped}</text>'
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through the points with a head at the last."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(f'<polyline points="{path}" fill="none" stroke="{INK}" marker-end="url(#head)"/>')

    def svg(self) -> str:
        """The picture as a file's text."""
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._height}" role="img" '
                'font-family="DejaVu Sans, Verdana, sans-serif">',
                f"<title>{self._title}</title>",
                f'<defs>{head}<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>',
                f'<rect width="{WIDTH}" height="{self._height}" fill="{PAPER}"/>',
                *self._shapes,
                "</svg>\n",
            )
        )


def flow() -> str:
    """What becomes of a query and of its weight."""
    picture = Picture(262, "From q and weights to codes and weights_out")
    steps = ("q, bf16", "rotate", "[Hadamard]", "amax", "scale 2^e", "codes")
    fills = (PLAIN, ROTATED, ROTATED, SCALE, SCALE, PLAIN)
    notes = ("(T, H, D)", "fp32, then bf16", "fp32, then bf16", "row, or 32 dims", "exponent of amax", "FP8 or E2M1")
    for number, (step, fill, note) in enumerate(zip(steps, fills, notes, strict=True)):
        x = 10 + 143 * number
        picture.box(x, 60, 118, step, fill, 40)
        picture.text(x + 59, 118, note, "middle", QUIET, 11)
        if number:
            picture.arrow((x - 25, 80), (x - 2, 80))
    picture.text(153, 25, "cos_sin_cache[position]", size=12)
    picture.arrow((212, 32), (212, 58))
    picture.box(10, 190, 118, "weights", WEIGHT, 40)
    picture.text(69, 248, "(T, H)", "middle", QUIET, 11)
    picture.box(296, 190, 118, "× C", WEIGHT, 40)
    picture.text(355, 248, "C = softmax × head scale", "middle", QUIET, 11)
    picture.box(582, 190, 118, "× 2^e", SCALE, 40)
    picture.text(641, 248, "FP8 alone", "middle", QUIET, 11)
    picture.box(725, 190, 118, "weights_out", WEIGHT, 40)
    for start, end in ((128, 294), (414, 580), (700, 723)):
        picture.arrow((start, 210), (end, 210))
    picture.arrow((641, 126), (641, 188))
    return picture.svg()


def rotary() -> str:
    """Which dims of a row rotate with which, in a row of 16 dims of which 8 rotate."""
    picture = Picture(272, "The four rotary layouts")
    layouts = (
        ("interleaved, tail", "tail", "interleaved", "DEEPSEEK_V4, DEEPSEEK_V4_HADAMARD, DEEPSEEK_V4_1"),
        ("interleaved, head", "head", "interleaved", "GLM_5"),
        ("neox, head", "head", "neox", "DEEPSEEK_V3_2"),
        ("neox, tail", "tail", "neox", ""),
    )
    dims, rotated, cell = 16, 8, 30
    for row, (name, place, style, models) in enumerate(layouts):
        y = 30 + 66 * row
        picture.text(10, y + 20, name)
        picture.text(160, y + 48, models, color=QUIET, size=11)
        start = dims - rotated if place == "tail" else 0
        for dim in range(dims):
            inside = 0 <= dim - start < rotated
            pair = (dim - start) // 2 if style == "interleaved" else (dim - start) % (rotated // 2)
            picture.box(160 + cell * dim, y, cell, str(dim), PAIRS[pair] if inside else PLAIN)
    picture.text(
        160, 20, "dim of a row (here D = 16, R = 8); a color is a pair that rotates together", color=QUIET, size=11
    )
    return picture.svg()


def _bits(picture: Picture, x: float, y: float, values: Sequence[str], fill: str, width: float) -> None:
    for number, value in enumerate(values):
        picture.box(x + width * number, y, width, value, fill)


def mxfp4() -> str:
    """How E2M1 codes share a byte, and scale bytes an int32."""
    picture = Picture(330, "MXFP4: nibbles and scale bytes")
    picture.text(10, 24, "q_packed, uint8 (T, H, D/2): two codes a byte, the even dim in the low nibble")
    for byte in range(4):
        x = 30 + 200 * byte
        picture.box(x, 40, 90, f"dim {2 * byte + 1}", ROTATED)
        picture.box(x + 90, 40, 90, f"dim {2 * byte}", PAIRS[0])
        picture.text(x + 45, 86, "bits 7..4", "middle", QUIET, 11)
        picture.text(x + 135, 86, "bits 3..0", "middle", QUIET, 11)
        picture.text(x + 90, 102, f"byte {byte}", "middle", QUIET, 11)
    picture.text(10, 140, "q_scale: one byte for 32 dims; an MX value is code × 2^(byte - 127)")
    for block in range(4):
        x = 30 + 200 * block
        picture.box(x, 154, 180, f"dims {32 * block}..{32 * block + 31}", PLAIN)
        picture.arrow((x + 90, 184), (x + 90, 214))
        picture.box(x, 216, 180, f"byte {block}", SCALE)
    picture.text(10, 276, "at D = 128 the four bytes are one little-endian int32 (T, H): byte 3 holds its highest bits")
    _bits(picture, 30, 288, ("byte 3", "byte 2", "byte 1", "byte 0"), SCALE, 110)
    picture.text(480, 308, "bits 31..24, 23..16, 15..8, 7..0", color=QUIET, size=12)
    return picture.svg()


def folding() -> str:
    """Where the scale of a query goes in each format."""
    picture = Picture(190, "Where the scale goes")
    picture.text(10, 24, "FP8: logit(k) = sum over heads of weights_out × relu(codes . k)")
    picture.box(30, 38, 250, "codes: q / 2^e", ROTATED, 36)
    picture.box(420, 38, 400, "weights_out = weight × C × 2^e", WEIGHT, 36)
    picture.text(350, 62, "no scale tensor", "middle", QUIET, 11)
    picture.text(10, 124, "MXFP4: the kernel that reads q applies the 32 dims' own scale")
    picture.box(30, 138, 250, "codes: q / 2^(byte - 127)", ROTATED, 36)
    picture.box(300, 138, 100, "bytes", SCALE, 36)
    picture.box(420, 138, 400, "weights_out = weight × C", WEIGHT, 36)
    return picture.svg()


PICTURES = {"flow.svg": flow, "rotary.svg": rotary, "mxfp4.svg": mxfp4, "folding.svg": folding}
