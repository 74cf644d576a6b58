"""The forms of fitted estimators of scikit-learn, for callers who permit ``sklearn.base.BaseEstimator``.

An estimator is its attributes, which are values of this format; no method of it runs. Its compiled code uses
the numbers that the worker chose, so trees, centres, vocabularies and categories are looked at, and
estimators whose compiled code relies on other numbers are refused.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable
from typing import Final, cast

import numpy as np
import sklearn
from sklearn._loss import _loss
from sklearn.base import BaseEstimator
from sklearn.linear_model import _sgd_fast
from sklearn.tree._tree import Tree
from sklearn.utils import Bunch

from dios.lib.executor.results.array_forms import Array
from dios.lib.executor.results.class_forms import (
    class_at,
    description_of,
    dictionary_of,
    is_allowed,
)
from dios.lib.executor.results.forms import (
    FORM_OF_PACKAGE,
    Form,
    Reading,
    form,
    name_of,
    owner_of,
    refusal,
    register,
    require,
    require_names,
)
from dios.lib.executor.results.matrix_forms import SPARSE_TYPES

_UNCHECKED: Final = (
    *(
        "sklearn.svm.",
        "sklearn.ensemble._hist_gradient_boosting.",
        "sklearn.ensemble._gb.",
        "sklearn.neighbors._",
    ),
    *("sklearn.cluster._kmeans.", "sklearn.cluster._bisect_k_means.", "sklearn.cluster._birch."),
    *("sklearn.cluster._hdbscan.", "sklearn.preprocessing._label.MultiLabelBinarizer"),
)
"""Modules and classes whose compiled code reads or writes at places that fitted attributes name."""

_CHECKED: Final = frozenset(
    {"LinearSVC", "LinearSVR", "NearestCentroid", "NeighborhoodComponentsAnalysis", "KMeans"}
)
"""Classes of these modules that compute with numpy alone, or whose numbers ``_has_safe_numbers`` checks."""

_THREADS_MAX: Final = 1_024
_HASHES_MAX: Final = 2**31 - 1

_REDUCES: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
_OWNERS: Final = frozenset({object, BaseEstimator, None})
_NONE: Final = type(None)
_CODE: Final = (types.FunctionType, property, classmethod, staticmethod)


def _form_of(cls: type) -> Form | None:
    """Return the form of a class of scikit-learn whose objects are their attributes."""
    name = f"{cls.__module__}.{cls.__name__}"
    if not name.startswith("sklearn.") or (name.startswith(_UNCHECKED) and cls.__name__ not in _CHECKED):
        return None
    owners = {owner_of(cls, name) for name in _REDUCES}
    return _ESTIMATOR if owners <= _OWNERS and owner_of(cls, "__dict__") is not None else None


def _parts(value: object) -> Iterable[object]:
    cls = type(value)
    parameters = _parameters(cls)
    state = dict(vars(value))
    defaults = [
        name
        for name, attribute in state.items()
        if isinstance(attribute, types.FunctionType) and parameters.get(name) is attribute
    ]
    for name in defaults:
        del state[name]
    return description_of(cls), sklearn.__version__, state, tuple(defaults)


def _parameters(cls: type) -> dict[str, object]:
    """Return the defaults of the parameters of an estimator."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    return {name: parameter.default for name, parameter in parameters.items()}


def _estimator(items: list[object], reading: Reading) -> object:
    if reading.is_comparison:
        return None
    require(items, tuple, str, dict, tuple)
    description, version, state, defaults = items
    module, qualname = require_names(description)
    cls = reading.remember(_permitted, description)
    if version != sklearn.__version__:
        raise refusal(
            f"a {qualname} that was fitted with scikit-learn {version}; here it is {sklearn.__version__}"
        )
    attributes = cast("dict[str, object]", dict(cast("dict[str, object]", state)))
    for name in cast("tuple[str, ...]", defaults):
        attributes[name] = _parameters(cls)[name]
    for name in attributes:
        owner = owner_of(cls, name) if type(name) is str else cls
        if owner is not None and (type(name) is not str or isinstance(vars(owner)[name], _CODE)):
            raise refusal(f"an object of {module}.{qualname} whose attribute {name!r} hides a method")
    if not _has_safe_numbers(cls, attributes):
        raise refusal(f"an object of {module}.{qualname} with numbers that its compiled code cannot use")
    instance: object = object.__new__(cls)
    dictionary_of(cls)(instance).update(attributes)
    return instance


def _permitted(description: tuple[str, ...]) -> type:
    module, qualname = description
    cls = class_at(module, qualname)
    if _form_of(cls) is None:
        raise refusal(f"an object of {module}.{qualname}")
    _require_permission(cls)
    return cls


def _require_permission(cls: type) -> None:
    if not is_allowed(BaseEstimator) and not is_allowed(cls):
        raise refusal(
            f"an object of {name_of(cls)}: permit estimators with dios.allow(sklearn.base.BaseEstimator)"
        )


# -- numbers ----------------------------------------------------------------------------------------
def _has_safe_numbers(cls: type, attributes: dict[str, object]) -> bool:
    """Return False for attributes with which compiled code would read or write beyond its memory."""
    features = attributes.get("n_features_in_")
    tree = attributes.get("tree_")
    if type(tree) is Tree and (type(features) is not int or features != cast("Tree", tree).n_features):
        return False
    if cls.__name__ == "KMeans" and "cluster_centers_" in attributes:
        centers, threads = attributes["cluster_centers_"], attributes.get("_n_threads")
        if type(centers) is not np.ndarray or type(features) is not int or type(threads) is not int:
            return False
        if centers.ndim != 2 or not len(centers) or centers.shape[1] != features:
            return False
        return 0 < threads <= _THREADS_MAX
    if cls.__name__ == "OneHotEncoder" and "categories_" in attributes:
        return _has_plain_categories(attributes)
    if cls.__module__.startswith("sklearn.feature_extraction."):
        return _has_safe_terms(attributes)
    # To fit further writes into arrays of these attributes.
    return not _is_set(attributes, "warm_start", "average") and _are_coefficients(attributes.get("coef_"))


def _are_coefficients(value: object) -> bool:
    if type(value) is np.ndarray:
        return value.size > 0
    return value is None or type(value) in SPARSE_TYPES


def _is_set(attributes: dict[str, object], *names: str) -> bool:
    """Return True if an attribute is there that is neither None, False nor 0."""
    values = [attributes.get(name) for name in names]
    return any(type(value) not in {_NONE, bool, int} or bool(value) for value in values)


def _has_plain_categories(attributes: dict[str, object]) -> bool:
    """Return True for an encoder with a column for each category, which is at its place in their order."""
    categories, counts = attributes["categories_"], attributes.get("_n_features_outs")
    return (
        type(categories) is list
        and all(map(_is_in_order, categories))
        and type(counts) is list
        and {int}.issuperset(map(type, counts))
        and counts == list(map(len, categories))
        and attributes.get("_infrequent_enabled") is False
        and attributes.get("_drop_idx_after_grouping", False) is None
    )


def _is_in_order(categories: object) -> bool:
    if type(categories) is not np.ndarray or categories.ndim != 1:
        return False
    kind = categories.dtype.kind
    # Text and objects are looked up in a dictionary.
    return kind in "OUS" or (
        kind in "biuf" and np.array_equal(np.sort(categories), categories, equal_nan=kind == "f")
    )


def _has_safe_terms(attributes: dict[str, object]) -> bool:
    """Return True if terms have columns that exist."""
    columns = attributes.get("n_features", 1)
    if type(columns) is not int or not 0 < columns <= _HASHES_MAX:
        return False
    vocabulary = attributes.get("vocabulary_", {})
    if type(vocabulary) is not dict:
        return False
    places = vocabulary.values()
    return {int, np.int64, np.int32}.issuperset(map(type, places)) and all(
        0 <= place < len(vocabulary) for place in places
    )


# -- trees ------------------------------------------------------------------------------------------
def _tree_parts(tree: Tree) -> Iterable[object]:
    _, (features, classes, outputs), state = tree.__reduce__()
    return features, classes, outputs, state["max_depth"], state["nodes"], state["values"]


def _tree(items: list[object], reading: Reading) -> Tree | None:
    if reading.is_comparison:
        return None
    _require_permission(Tree)
    require(items, int, np.ndarray, int, int, np.ndarray, np.ndarray)
    features, classes, outputs, depth, nodes, values = cast(
        "tuple[int, Array, int, int, Array, Array]", items
    )
    _require_nodes(nodes, features, depth, reading)
    if (
        (classes.ndim, values.ndim, outputs) != (1, 3, len(classes))
        or (values.shape[0], values.shape[1]) != (len(nodes), outputs)
        or classes.dtype != np.intp
        or not (classes.min() >= 1 and classes.max() <= values.shape[2] and 0 <= depth <= len(nodes))
    ):
        raise refusal("a tree of another shape than its values")
    tree = Tree(features, classes, outputs)
    state = {"max_depth": depth, "node_count": len(nodes), "nodes": nodes, "values": values}
    tree.__setstate__(state)
    return tree


def _require_nodes(nodes: Array, features: int, depth: int, reading: Reading) -> None:
    """Raise UntrustedResultError for nodes that compiled code would follow out of the tree, or too far."""
    if nodes.ndim != 1 or not {"left_child", "right_child", "feature"}.issubset(nodes.dtype.names or ()):
        raise refusal("a tree without nodes")
    numbers = np.arange(len(nodes))
    inner = nodes["left_child"] != -1
    for name in ("left_child", "right_child"):
        child = nodes[name][inner]
        if not (np.all(child > numbers[inner]) and np.all(child < len(nodes))):
            raise refusal("a tree whose nodes have no order")
    feature = nodes["feature"][inner]
    if not len(nodes) or not (np.all(feature >= 0) and np.all(feature < features)):
        raise refusal("a tree of other features")
    children = np.concatenate([nodes[name][inner] for name in ("left_child", "right_child")])
    if len(np.unique(children)) != len(children):
        raise refusal("a tree whose branches meet")
    level = numbers[:1]
    for _ in range(depth + 1):
        reading.check_time()
        level = level[inner[level]]
        level = np.concatenate([nodes[name][level] for name in ("left_child", "right_child")])
        if not len(level):
            return
    raise refusal("a tree that is deeper than it says")


# -- losses -----------------------------------------------------------------------------------------
_LOSSES: Final = {
    kind.__qualname__: kind
    for module in (_loss, _sgd_fast)
    for kind in vars(module).values()
    if isinstance(kind, type) and kind.__module__ == module.__name__ and "Function" not in kind.__name__
}
"""The compiled functions of losses: each has only numbers."""


def _loss_parts(value: object) -> Iterable[object]:
    make, arguments = cast("tuple[type, tuple[object, ...]]", value.__reduce__()[:2])
    return type(value).__qualname__, *(arguments if make is type(value) else ())


def _compiled_loss(items: list[object], _reading: Reading) -> object:
    name, *arguments = items
    require(items, str, *[(int, float)] * len(arguments))
    return _LOSSES[cast("str", name)](*arguments)


_ESTIMATOR: Final = form(116, (), _parts, None, _estimator)

register(
    __name__,
    (
        _ESTIMATOR,
        form(117, Tree, _tree_parts, None, _tree),
        form(119, tuple(_LOSSES.values()), _loss_parts, None, _compiled_loss),
        form(118, Bunch, lambda value: (dict(value),), (dict,), lambda values: Bunch(**values)),
    ),
)
FORM_OF_PACKAGE["sklearn"] = _form_of
