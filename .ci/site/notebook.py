"""Run and render notebooks without Jupyter.

`python .ci/site/notebook.py docs/tour.ipynb` runs the notebook and stores its outputs in the file.
"""

import ast
import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

from PIL import Image

REPR_METHODS = {
    "image/png": "_repr_png_",
    "text/html": "_repr_html_",
}  # MIME type -> method of an object that has one
MAX_HTML_CHARS = 50_000  # longer HTML, such as a page with scripts, is not stored


def run_notebook(file: Path) -> dict[str, Any]:
    """Run a notebook in the working directory and return it with outputs; exceptions of cells propagate."""
    notebook = json.loads(file.read_text("utf-8"))
    names = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        value = _execute_cell("".join(cell["source"]), f"cell {number}", names)
        cell["execution_count"] = number
        cell["outputs"] = [] if value is None else [_format_output(value, number)]
    return notebook


def _execute_cell(source: str, name: str, names: dict[str, Any]) -> Any:
    """Execute a cell and return the value of its last expression, or None."""
    tree = ast.parse(source, name)
    last_expression = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    return (
        None
        if last_expression is None
        else eval(compile(ast.Expression(last_expression.value), name, "eval"), names)
    )


def _format_output(value: Any, number: int) -> dict[str, Any]:
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    for kind, method in REPR_METHODS.items():
        if hasattr(value, method):
            rendering = getattr(value, method)()
            if kind == "image/png":
                data[kind] = _compress_png(rendering)
            elif len(rendering) <= MAX_HTML_CHARS:
                data[kind] = rendering.splitlines(keepends=True)
    return {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}


def _compress_png(png: bytes) -> str:
    """Reduce a PNG to 64 colors and encode it as base64."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(64).save(out, "png", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def render_notebook(file: Path) -> dict[str, bytes]:
    """Render a notebook as Markdown, with a file for each picture."""
    parts = []
    files = {}
    for number, cell in enumerate(json.loads(file.read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output["data"]
            if "image/png" in data:
                name = f"{file.stem}_{number}.png"
                files[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{''.join(data['text/plain'])}]({name})")
            elif "text/html" in data:
                # without a class, the site's theme lets the table scroll in a box of its own
                html = "".join(data["text/html"])
                parts.append(html.replace('<table border="1" class="dataframe">', "<table>"))
            else:
                parts.append(f"```text\n{''.join(data['text/plain'])}\n```")
    return files | {f"{file.stem}.md": "\n\n".join(parts).encode()}


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(json.dumps(run_notebook(path), indent=1, ensure_ascii=False) + "\n", "utf-8")
