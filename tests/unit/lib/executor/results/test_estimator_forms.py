"""Fitted estimators of scikit-learn in results, for callers who permit them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.ensemble import GradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.results import class_forms
from dios.lib.executor.results.class_forms import allow
from dios.lib.executor.results.reader import read_value
from dios.lib.executor.results.writer import write_value
from tests.support.result_bodies import Node, tree_of, variants, written
from tests.support.spying import CALLS, Spy

X: Final = np.random.default_rng(0).random((40, 4))
Y: Final = (X[:, 0] > 0.5).astype(int)

ESTIMATORS: Final = (
    *(
        LinearRegression(),
        DecisionTreeClassifier(max_depth=3),
        RandomForestClassifier(n_estimators=3, random_state=0),
    ),
    *(
        IsolationForest(n_estimators=2, random_state=0),
        SGDClassifier(random_state=0),
        MLPClassifier(max_iter=2000, tol=1),
    ),
    *(KMeans(2, n_init=1, random_state=0), DecisionTreeClassifier(max_leaf_nodes=4)),
    make_pipeline(StandardScaler(), SelectKBest(k=2), LogisticRegression()),
    GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2),
)


@pytest.fixture(autouse=True)
def no_permissions() -> Iterator[None]:
    """Permit no class but those of a test."""
    permitted = dict(class_forms._allowed)
    class_forms._allowed.clear()
    yield
    class_forms._allowed.clear()
    class_forms._allowed.update(permitted)


def read(tree: object) -> object:
    """Return the value of a tree."""
    value = written(tree)
    return read_value(value.body, value.buffers)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_a_fitted_estimator_predicts_the_same(estimator: BaseEstimator) -> None:
    """With the permission an estimator comes back with its attributes; without it the error says how."""
    estimator.fit(X, Y)
    written_value = write_value(estimator)
    with pytest.raises(UntrustedResultError, match=r"dios\.allow\(sklearn\.base\.BaseEstimator\)"):
        read_value(written_value.body, written_value.buffers)
    allow(BaseEstimator)
    decoded = read_value(written_value.body, written_value.buffers)
    assert type(decoded) is type(estimator)
    assert list(vars(decoded)) == list(vars(estimator)) or set(vars(decoded)) == set(vars(estimator))
    assert np.array_equal(decoded.predict(X), estimator.predict(X))  # type: ignore[attr-defined]


def test_coefficients_may_be_sparse() -> None:
    """A classifier with few coefficients predicts the same."""
    allow(BaseEstimator)
    fitted = SGDClassifier(random_state=0).fit(X, Y).sparsify()
    decoded = read(tree_of(write_value(fitted)))
    assert isinstance(decoded, SGDClassifier)
    assert np.array_equal(decoded.predict(X), fitted.predict(X))


def test_one_class_can_be_permitted_alone() -> None:
    """``dios.allow`` of a class of estimators permits no other."""
    allow(LinearRegression)
    assert isinstance(read(tree_of(write_value(LinearRegression().fit(X, Y)))), LinearRegression)
    with pytest.raises(UntrustedResultError):
        read(tree_of(write_value(LogisticRegression().fit(X, Y))))


def test_estimators_whose_compiled_code_trusts_them_are_refused() -> None:
    """The permission for all estimators does not cover those that read at places of their attributes."""
    allow(BaseEstimator)
    for estimator in (SVC(), GradientBoostingClassifier(n_estimators=2), MiniBatchKMeans(2, n_init=1)):
        with pytest.raises(UntrustedResultError, match=type(estimator).__name__):
            read(tree_of(write_value(estimator.fit(X, Y))))


FEW: Final = ["one two", "two three"]

FITTED: Final[dict[str, tuple[BaseEstimator, str, object]]] = {
    "a tree of more features": (DecisionTreeClassifier().fit(X, Y), "n_features_in_", 3),
    "a tree without features": (DecisionTreeClassifier().fit(X, Y), "n_features_in_", None),
    "centres of fewer features": (KMeans(2, n_init=1).fit(X), "cluster_centers_", X[:2, :3].copy()),
    "no centres": (KMeans(2, n_init=1).fit(X), "cluster_centers_", X[:0].copy()),
    "threads without end": (KMeans(2, n_init=1).fit(X), "_n_threads", 10**6),
    "a term beyond the columns": (CountVectorizer().fit(FEW), "vocabulary_", {"one": 0, "two": 2**31}),
    "a term before the columns": (DictVectorizer().fit([{"a": 1}]), "vocabulary_", {"a": -1}),
    "hashes without columns": (HashingVectorizer(), "n_features", 0),
    "fewer columns than categories": (OneHotEncoder().fit([["a"], ["b"]]), "_n_features_outs", [1]),
    "categories without an order": (
        OneHotEncoder().fit([[1], [2]]),
        "categories_",
        [np.array([2, 1])],
    ),
    "no coefficients to begin with": (SGDClassifier().fit(X, Y), "coef_", np.empty((0, 4))),
    **{
        f"no coefficients in a {kind.__name__}": (
            SGDClassifier().fit(X, Y),
            "coef_",
            np.empty((0, 4)).view(kind),
        )
        for kind in (np.recarray, np.matrix, np.memmap)
    },
    "coefficients that are no array": (SGDClassifier().fit(X, Y), "coef_", [[1.0] * 4]),
    "a start with its own coefficients": (LogisticRegression().fit(X, Y), "warm_start", True),
}


@pytest.mark.parametrize("name", FITTED)
def test_numbers_that_lead_compiled_code_out_of_its_memory_are_refused(name: str) -> None:
    """An estimator whose shapes or places do not belong together is refused; the fitted one is not."""
    allow(BaseEstimator)
    fitted, attribute, number = FITTED[name]
    assert type(read(tree_of(write_value(fitted)))) is type(fitted)
    changed = copy.copy(fitted)
    vars(changed)[attribute] = number
    with pytest.raises(UntrustedResultError, match="numbers"):
        read(tree_of(write_value(changed)))


def test_the_worker_needs_no_permission_to_compare() -> None:
    """A worker, which permits no class, compares a frame next to a tree, and sends both."""
    value = write_value([DecisionTreeClassifier().fit(X, Y), pd.DataFrame({"a": [1]})])
    allow(BaseEstimator)
    decoded = read_value(value.body, value.buffers)
    assert isinstance(decoded, list)
    assert np.array_equal(decoded[0].predict(X), Y)


def test_an_attribute_cannot_hide_a_method() -> None:
    """A worker cannot replace a method of an estimator, or give it one of another version."""
    allow(BaseEstimator)
    tree = tree_of(write_value(LinearRegression().fit(X, Y)))
    assert isinstance(tree, Node)
    description, version, state, defaults = tree.parts
    assert isinstance(state, Node)
    for parts in (
        (description, version, Node(state.code, (*state.parts, "predict", 1)), defaults),
        (description, "0.1", state, defaults),
        (Node(9, ("sklearn.svm._classes", "SVC")), version, state, defaults),
        (Node(9, ("subprocess", "Popen")), version, state, defaults),
    ):
        with pytest.raises(UntrustedResultError):
            read(Node(tree.code, parts))


def test_a_tree_leads_to_its_own_nodes() -> None:
    """Compiled code follows the nodes of a tree: those that lead out of it or back are refused."""
    allow(BaseEstimator)
    fitted = DecisionTreeClassifier(max_depth=3).fit(X, Y).tree_
    features, classes, outputs, depth, nodes, values = tree_of(write_value(fitted)).parts  # type: ignore[attr-defined]
    original = fitted.__getstate__()["nodes"]
    second = original["left_child"][0]
    for name, number in (
        *(("left_child", 0), ("right_child", 10**6), ("feature", 4), ("feature", -3)),
        ("right_child", second),
    ):
        changed = original.copy()
        changed[name][0] = number
        parts = tree_of(write_value(changed))
        assert isinstance(parts, Node)
        with pytest.raises(UntrustedResultError):
            read(Node(117, (features, classes, outputs, depth, parts, values)))
    with pytest.raises(UntrustedResultError, match="deeper"):
        read(Node(117, (features, classes, outputs, fitted.max_depth - 1, nodes, values)))
    read(Node(117, (features, classes, outputs, depth, nodes, values)))


def test_no_part_of_an_estimator_runs_code_of_the_program() -> None:
    """Each part of a fitted estimator is replaced by a record of the program: none of its methods runs."""
    allow(BaseEstimator)
    spy = Node(56, (Node(9, (Spy.__module__, "Spy", "x")), 1))
    for estimator in ESTIMATORS[:2]:
        for tree in variants(tree_of(write_value(estimator.fit(X, Y))), (spy, Node(8, (spy,)))):
            CALLS.clear()
            try:
                read(tree)
            except UntrustedResultError:
                continue
            assert CALLS == []
