"""Node classification with a PyG Data object (Cora; --dataset karate needs no download).

Needs torch_geometric, and Cora's files: dladmm datasets fetch cora
"""

import argparse
import warnings

from sklearn.exceptions import ConvergenceWarning

from dladmm import GCNClassifier, datasets

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", default="cora")
parser.add_argument("--max-iter", type=int, default=100)
arguments = parser.parse_args()

warnings.simplefilter("ignore", ConvergenceWarning)
data = datasets.load(
    arguments.dataset
).to_pyg()  # or any torch_geometric.data.Data with x, edge_index, y, masks
print(data)

gcn = GCNClassifier(hidden_layer_sizes=(16,), max_iter=arguments.max_iter, random_state=0).fit(data)
print(f"train accuracy {gcn.score(data, mask='train'):.3f}, test accuracy {gcn.score(data, mask='test'):.3f}")
print(gcn.certificate_)
