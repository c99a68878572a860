"""What the page of speed shows of a GPU is what its programs print."""

from __future__ import annotations

import gpu_page
import pytest

RESULTS = gpu_page.HERE.parent / "docs" / "results"
GRAPH = "some accelerated {}: 2.02 ms, Adam epoch 1.49 ms, 1.35 epochs; memory 0.16 GB, Adam 0.16 GB; warm-up 1 s; {}"
ITERATION = (
    "mlp accelerated {}: 31 ms, Adam epoch 12 ms, 2.6 epochs; memory 3.70 GB, Adam 4.58 GB; warm-up 1 s; {}"
)
ROWS = [f"{20 - i:9.3f}ms {i + 1:5d} x  kernel {i}{' of a long name' * 20}" for i in range(20)]
TABLE = "\n".join(["{'device': 'cuda'}", ITERATION, *ROWS, "   30.062ms  1523 x  all kernels"])


@pytest.fixture
def asked():
    return []


@pytest.fixture
def run(asked):
    def answered(program, *arguments):
        asked.append((program, *arguments))
        if program == "kernel_times.py":
            return TABLE.replace("mlp", arguments[0]) if arguments[0] in ("mlp", "cnn") else GRAPH
        return f"what {program} prints\n"

    return answered


def test_all_files_are_made(run, asked):
    made = dict(gpu_page.results(run, "images.npz", "fashion.npz", gpu_page.PARTS))
    assert all((RESULTS / name).is_file() for name in made), "the page has no file of such a name"
    summary = made["performance-h200-auto.txt"].splitlines()
    assert len(summary) == len(gpu_page.GRAPHS) + 4 + 1
    assert summary[0].endswith(
        "{}, 16 units: 2.02 ms, Adam epoch 1.49 ms, 1.35 epochs; memory 0.16 GB, Adam 0.16 GB"
    )
    assert summary[len(gpu_page.GRAPHS)] == "mlp accelerated {}: 31 ms, Adam epoch 12 ms, 2.6 epochs"
    assert summary[-2].startswith("cnn on Fashion-MNIST accelerated")
    assert summary[-1] == "what whole_run.py prints"
    profile = made["profile-accelerated-mlp.txt"].splitlines()
    assert profile[-1] == "   30.062ms  1523 x  all kernels"
    assert len(profile) == 1 + gpu_page.MOST_KERNELS + 1
    assert max(map(len, profile)) <= gpu_page.WIDEST
    assert sum(program == "kernel_times.py" for program, *_ in asked) == len(gpu_page.GRAPHS) + 4


def test_a_part_leaves_the_other_files_alone(run, asked):
    assert [name for name, _ in gpu_page.results(run, "images.npz", "fashion.npz", ["large"])] == [
        "performance-large-graph-cuda.txt"
    ]
    assert asked == [("large_graph.py", "--device", "cuda")]
