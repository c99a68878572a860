"""An installed dladmm, tried from a folder that is not its own: ``python -I -W error smoke.py VERSION [--extras]``.

With the base dependencies alone it trains, saves, loads, reports and runs the command line; with ``--extras`` it also
draws and fits a PyG graph. Needs nothing but the package.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

EXTRAS = ("matplotlib", "torch_geometric")


def main() -> None:
    version, with_extras = sys.argv[1], "--extras" in sys.argv
    import dladmm

    where = Path(dladmm.__file__).resolve()
    assert "site-packages" in where.parts, f"not the installed package: {where}"
    assert dladmm.__version__ == version, dladmm.__version__
    assert (where.parent / "py.typed").exists()
    assert "sklearn" not in sys.modules, "import dladmm imports scikit-learn"
    for name in EXTRAS:
        present = importlib.util.find_spec(name) is not None
        assert present == with_extras, f"{name} is {'here' if present else 'missing'}"

    warnings.simplefilter("ignore")  # few iterations, which is what the warnings would say
    library()
    command_line(version, with_extras)
    if with_extras:
        extras()
    print(f"dladmm {version}: {'base and extras' if with_extras else 'base dependencies alone'}, all well")


def library() -> None:
    import dladmm

    data = dladmm.datasets.load("digits")
    X, y = data.x_train.numpy(), data.y_train.numpy()
    clf = dladmm.MLPClassifier((30,), max_iter=15, random_state=0).fit(X, y)
    assert clf.score(data.x_test.numpy(), data.y_test.numpy()) > 0.85
    clf.save("digits.dladmm")
    again = dladmm.MLPClassifier.load("digits.dladmm")
    assert (again.predict(X) == clf.predict(X)).all()
    result = dladmm.train(dladmm.mlp([64, 20, 10], "sign"), X, y, mode="convergent", max_iter=3)
    assert result.certificate.certified, str(result.certificate)
    karate = dladmm.datasets.load("karate")
    gcn = dladmm.GCNClassifier((16,), mode="convergent", max_iter=20, random_state=0).fit(karate)
    assert gcn.score(karate, mask="train") > 0.9


def command_line(version: str, with_extras: bool) -> None:
    assert dladmm_says("--version").strip() == version
    said = json.loads(
        dladmm_says(
            *("train", "mlp", "--dataset", "digits", "--hidden", "10", "--max-iter", "3"),
            *("--out", "run", "--json"),
        )
    )
    assert said["iterations"] == 3 or said.get("status"), said
    dladmm_says("report", "run", *(["--figures"] if with_extras else []))
    assert "<html" in Path("run/report.html").read_text(encoding="utf-8")
    assert json.loads(dladmm_says("datasets", "list", "--json"))
    assert "mlp-accuracy" in dladmm_says("reproduce", "--list")


def dladmm_says(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "dladmm"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def extras() -> None:
    import dladmm

    data = dladmm.datasets.load("karate").to_pyg()
    gcn = dladmm.GCNClassifier((16,), mode="convergent", max_iter=20, random_state=0).fit(data)
    assert gcn.score(data, mask="train") > 0.9
    assert list(Path("run").glob("report-figures/*.png")), "no figures were drawn"


if __name__ == "__main__":
    main()
