"""scikit-learn's GridSearchCV with its fits in sandboxed tasks: python examples/bridges/grid_search.py."""

from __future__ import annotations

import joblib
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import dios.bridges.joblib  # noqa: F401 - registers the backend "dios"


def main() -> None:
    """Search, and print the best parameters."""
    flowers, kinds = load_iris(return_X_y=True)
    search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "kernel": ["linear", "rbf"]}, cv=3)
    with joblib.parallel_config(backend="dios", n_jobs=2):
        search.fit(flowers, kinds)
    print(search.best_params_, f"{search.best_score_:.2f}")


if __name__ == "__main__":
    main()
