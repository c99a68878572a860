"""
Nodes of a graph
================

Node classification with a PyG ``Data`` object (Cora; ``--dataset karate`` needs no download).

Needs torch_geometric, and Cora's files: ``dladmm datasets fetch cora``.
"""

import argparse
import warnings

from sklearn.exceptions import ConvergenceWarning

from dladmm import GCNClassifier, datasets

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", default="cora")
parser.add_argument("--max-iter", type=int, default=25)
arguments = parser.parse_args()

warnings.simplefilter("ignore", ConvergenceWarning)
# Or any torch_geometric.data.Data with x, edge_index, y, masks
data = datasets.load(arguments.dataset).to_pyg()
print(data)

# %%
# rows="train" generalises better than the paper's problem, which lets every node's hidden row float (docs/graphs.md).
gcn = GCNClassifier(
    hidden_layer_sizes=(128,),
    mode="convergent",
    rows="train",
    rho=0.1,
    mu=0.1,
    regularizer={"name": "l2", "strength": 0.1},
    w_solver="quadratic",
    max_iter=arguments.max_iter,
    random_state=0,
).fit(data)
print(f"train accuracy {gcn.score(data, mask='train'):.3f}, test accuracy {gcn.score(data, mask='test'):.3f}")
print(gcn.certificate_)
