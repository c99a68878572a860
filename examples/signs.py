"""
Weights of +1 and -1, packed into bits
======================================

A network whose hidden units and weights are +1 or -1, and the file that predicts with it by XOR and popcount.

The units have no gradient and the weights cannot move by a little; streaming mode moves latent weights towards
least-squares targets and shows the network their signs. ``docs/signs.md`` has the method, and how it does beside the
straight-through estimator.
"""

import tempfile
from pathlib import Path

import numpy as np

import dladmm
from dladmm.api.packing import cost_of, save_packed
from dladmm.packed import PackedNetwork

data = dladmm.datasets.load("digits")
X, X_test = (np.asarray(part) for part in (data.x_train, data.x_test))
y, y_test = (np.asarray(part) for part in (data.y_train, data.y_test))

# %%
# Real weights, three levels, two bits with four-level units, and at most 16 weights per unit.
LEVELS = {"name": "quantised", "levels": 4, "low": -1.0, "high": 1.0}
for activation, weights in (("sign", None), ("sign", "ternary"), (LEVELS, 2), ("sign", {"per_unit": 16})):
    model = dladmm.MLPClassifier((64, 64), activation, weights=weights, max_iter=5, random_state=0).fit(X, y)
    print(f"weights {weights}: test accuracy {model.score(X_test, y_test):.3f}")

# %%
# Signs throughout, packed.
model = dladmm.MLPClassifier((64, 64), "sign", weights="binary", max_iter=5, random_state=0).fit(X, y)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "digits.packed.npz"
    save_packed(model.module_, file, unit=1 / 16, classes=model.classes_)
    packed = PackedNetwork(file)
print(packed, cost_of(model.module_))
same = (packed.predict((16 * X_test).astype(np.uint8)) == model.predict(X_test)).mean()
print(f"test accuracy {model.score(X_test, y_test):.3f}, predictions that are the same packed: {same:.0%}")
