"""The notebook runs from top to bottom, and what its cells show is there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"
SHOWN = {  # words of a cell -> what its HTML holds
    "images.reshape": "data:image/png",
    "nn.Sequential": "55,178 parameters",
    "fast.graph": "<svg",
    "fast.plan": "if nothing were reused",
    "mg.profile": "GFLOP/s",
    "mg.Trainer": "<polyline",
    "session.session": "<svg",
}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The code cells after a run."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(TOUR, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the notebook's machinery, not of its cells
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path_factory.mktemp("tour"))}}).execute()
    return [c for c in notebook.cells if c.cell_type == "code"]


@pytest.mark.parametrize("words", SHOWN)
def test_cells_show_pictures(cells: Any, words: str) -> None:
    cell = next(c for c in cells if words in c.source)
    shown = "".join(o.data.get("text/html", "") for o in cell.outputs if o.output_type == "execute_result")
    assert SHOWN[words] in shown


def test_no_cell_warns(cells: Any) -> None:
    noise = [o.text for c in cells for o in c.outputs if o.output_type == "stream" and o.name == "stderr"]
    assert not [text for text in noise if "Warning" in text], noise


def test_training_learns(cells: Any) -> None:
    rows = next(o.data["text/plain"] for c in cells if "mg.Trainer" in c.source for o in c.outputs if "data" in o)
    assert float(rows.rsplit("accuracy", 1)[1].split("\n")[0]) > 0.9, rows
