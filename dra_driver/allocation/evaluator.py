"""The CEL evaluator, which is an extra of this distribution: the node plugin does without it."""

from dra_driver.model.errors import BadNode


class EvaluatorMissing(BadNode):
    """The library that evaluates CEL is not installed."""

    reason = "EvaluatorMissing"


try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
except ImportError as error:
    raise EvaluatorMissing(
        "selectors of claims can't be evaluated: cel_expr_python is not installed here"
        f" ({error}); install gpu-dra-driver[cli]"
    ) from error

__all__ = ["EvaluatorMissing", "cel", "ext_bindings", "ext_optional", "ext_strings"]
