"""
A scikit-learn pipeline
=======================

GridSearchCV around dlADMM.
"""

import warnings

from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dladmm import MLPClassifier

warnings.simplefilter("ignore", ConvergenceWarning)  # 30 iterations are enough to compare settings

# %%
# The estimator's parameters are searched like those of any other.
X, y = load_wine(return_X_y=True)
pipeline = make_pipeline(StandardScaler(), MLPClassifier(max_iter=30, random_state=0))
grid = {
    "mlpclassifier__hidden_layer_sizes": [(20,), (20, 20)],
    "mlpclassifier__regularizer": [None, {"name": "l2", "strength": 1.0}],
}
search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
print(f"best cross-validated accuracy {search.best_score_:.3f} with {search.best_params_}")
