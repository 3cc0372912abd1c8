"""A notebook without Jupyter: its cells run one after another, its outputs kept in it or made a page.

`python .ci/site/notebook.py docs/tour.ipynb` runs it and writes what its cells show into it.
"""

import ast
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

SHOWN = {"image/png": "_repr_png_", "text/html": "_repr_html_"}  # by what an object offers, else its repr


def run(file: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in the working directory; what one raises is raised."""
    told = json.loads(file.read_text("utf-8"))
    names = {"__name__": "__main__"}
    cells = [cell for cell in told["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        value = _value("".join(cell["source"]), f"cell {number}", names)
        cell["execution_count"] = number
        cell["outputs"] = [] if value is None else [_output(value, number)]
    return told


def _value(source: str, name: str, names: dict[str, Any]) -> Any:
    """What the last line of a cell is, where that is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


def _output(value: Any, number: int) -> dict[str, Any]:
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    for kind, method in SHOWN.items():
        if hasattr(value, method):
            shown = getattr(value, method)()
            data[kind] = _small(shown) if kind == "image/png" else shown.splitlines(keepends=True)
    return {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}


def _small(png: bytes) -> str:
    """A picture in 64 colours, as notebooks keep it."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(out, "png", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def page(file: Path) -> dict[str, bytes]:
    """A notebook as Markdown, with a file for each of its pictures."""
    text = []
    files = {}
    for number, cell in enumerate(json.loads(file.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        text.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output["data"]
            if "image/png" in data:
                name = f"{file.stem}_{number}.png"
                files[name] = base64.b64decode(data["image/png"])
                text.append(f"![{''.join(data['text/plain'])}]({name})")
            elif "text/html" in data:
                text.append("".join(data["text/html"]))
            else:
                text.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return files | {f"{file.stem}.md": "\n\n".join(text).encode()}


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(json.dumps(run(path), indent=1, ensure_ascii=False) + "\n", "utf-8")
