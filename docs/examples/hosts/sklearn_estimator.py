"""An estimator for scikit-learn whose prediction is attention, with its dispatch of arrays: torch in, torch out.

Needs: pip install 'attnspec[torch]' scikit-learn, and SCIPY_ARRAY_API=1 in the environment
"""

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")

import numpy as np
import torch
from array_api_function import kernel_regression  # the example beside this one
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import GridSearchCV
from sklearn.utils.validation import check_is_fitted, validate_data


class KernelRegression(RegressorMixin, BaseEstimator):
    """Nadaraya and Watson's: the mean of the training values, weighed by a Gaussian of the distance."""

    def __init__(self, bandwidth=1.0):
        self.bandwidth = bandwidth

    def fit(self, X, y):
        """Keep the points (K, D) and their values (K,)."""
        self.X_, self.y_ = validate_data(self, X, y)
        return self

    def predict(self, X):
        """Values at the places X (Q, D)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        return kernel_regression(self.X_, self.y_, X, bandwidth=self.bandwidth)


rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (300, 2))
y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2

search = GridSearchCV(KernelRegression(), {"bandwidth": [0.03, 0.1, 1.0]}, cv=3).fit(X, y)
assert search.best_params_ == {"bandwidth": 0.1}
assert search.best_score_ > 0.9

with config_context(array_api_dispatch=True):
    on_torch = KernelRegression(0.1).fit(torch.asarray(X), torch.asarray(y)).predict(torch.asarray(X))
assert isinstance(on_torch, torch.Tensor)
assert np.allclose(on_torch.numpy(), search.predict(X))
