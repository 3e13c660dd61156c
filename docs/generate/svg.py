"""SVG elements for the pictures. Colours follow the light or dark scheme of the reader."""

from html import escape

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2933 }
  .strong { font-weight: 600; font-size: 15px }
  .soft { fill: #52606d; font-size: 12px }
  .line { stroke: #7b8794; stroke-width: 1.5; fill: none }
  .thin { stroke: #cbd2d9; stroke-width: 1; fill: none }
  .head { fill: #7b8794 }
  .good { fill: #d8f3e3; stroke: #2f8f5b; stroke-width: 1.5 }
  .warn { fill: #fdf0d5; stroke: #b7791f; stroke-width: 1.5 }
  .cold { fill: #dbeafe; stroke: #2b6cb0; stroke-width: 1.5 }
  .dead { fill: #fde2e1; stroke: #b42318; stroke-width: 1.5 }
  .page { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb } .soft { fill: #9aa5b1 } .thin { stroke: #3e4c59 } .page { fill: #14181d }
    .good { fill: #123524 } .warn { fill: #3a2c10 } .cold { fill: #12294a } .dead { fill: #3f1512 }
  }
"""


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n  <title>{escape(title)}</title>\n  <style>{STYLE}  </style>\n'
        f'  <rect class="page" width="{width}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'


def dot(x: float, y: float, kind: str, radius: float = 6) -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>'


def line(points: list[tuple[float, float]], kind: str = "line") -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}"/>'


def arrow(points: list[tuple[float, float]]) -> str:
    """A line along the axes whose end has a head."""
    (before_x, before_y), (x, y) = points[-2:]
    across, down = (x > before_x) - (x < before_x), (y > before_y) - (y < before_y)
    back_x, back_y = x - 9 * across, y - 9 * down
    head = [(x, y), (back_x + 5 * down, back_y + 5 * across), (back_x - 5 * down, back_y - 5 * across)]
    corners = " ".join(f"{at:g},{to:g}" for at, to in head)
    return f'{line([*points[:-1], (back_x, back_y)])}<polygon class="head" points="{corners}"/>'
