"""The webhook's metrics, declared as data."""

from typing import Final

from dra_driver.telemetry import Metric, series

RESOURCES: Final = ("deviceclasses", "resourceclaims", "resourceclaimtemplates")
OTHER: Final = "other"

CATALOGUE: Final[tuple[Metric, ...]] = (
    Metric(
        "gpu_dra_driver_admission_reviews_total",
        "counter",
        "Objects that the API server asked about, by resource and result.",
        ("resource", "result"),
        series(resource=RESOURCES, result=("allowed", "warned", "refused")),
    ),
    Metric(
        "gpu_dra_driver_admission_unreadable_total",
        "counter",
        "Requests that were no review.",
    ),
    Metric(
        "gpu_dra_driver_admission_duration_seconds",
        "histogram",
        "Time from the end of a request to its answer.",
    ),
    Metric(
        "gpu_dra_driver_certificate_expiry_timestamp_seconds",
        "gauge",
        "End of the serving certificate in seconds since 1970; 0 without one.",
    ),
    Metric(
        "gpu_dra_driver_certificate_changes_total",
        "counter",
        "Serving certificates that this process took into use, and tries that failed.",
        ("result",),
        series(result=("ok", "error")),
    ),
)
