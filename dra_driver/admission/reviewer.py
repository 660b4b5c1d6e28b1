"""Answers the API server: reads, checks, counts, logs."""

import time
from http import HTTPStatus
from typing import Final

from dra_driver.admission.checks import Findings, examine
from dra_driver.admission.metrics import OTHER, RESOURCES
from dra_driver.admission.objects import GROUP, devices_of
from dra_driver.admission.review import Review, Unreadable, answer, read_review
from dra_driver.config.yaml_text import path_text
from dra_driver.telemetry import Metrics, logger
from dra_driver.telemetry.http_server import Page

_log = logger(__name__)
_JSON: Final = "application/json"
_MOST_LOGGED: Final = 5
_LONGEST_LOGGED: Final = 120  # characters of a field


class Reviewer:
    """Reviews objects for one driver."""

    def __init__(self, driver: str, metrics: Metrics) -> None:
        """Look at configs for `driver`."""
        self._driver = driver
        self._metrics = metrics

    def __call__(self, body: bytes) -> Page:
        """Answer one AdmissionReview; what is none is answered with 400."""
        began = time.perf_counter()
        try:
            review = read_review(body)
        except Unreadable as error:
            self._metrics.count("gpu_dra_driver_admission_unreadable_total")
            _log.warning("a request is no review", err=error)
            return Page(f"{error}\n".encode(), HTTPStatus.BAD_REQUEST)
        findings = self.findings(review)
        self._tell(review, findings)
        page = Page(answer(review, findings), content_type=_JSON)
        seconds = time.perf_counter() - began
        self._metrics.observe("gpu_dra_driver_admission_duration_seconds", seconds)
        return page

    def findings(self, review: Review) -> Findings:
        """Check an object; nothing is found where an update leaves what concerns us as it was.

        So an object that was stored before this webhook was there can lose its finalizers.
        """
        if review.group != GROUP or review.subresource:
            return Findings()
        if review.operation not in ("CREATE", "UPDATE"):
            return Findings()
        devices = devices_of(review.kind, review.object, self._driver)
        if devices is None or not devices.entries:
            return Findings()
        before = devices_of(review.kind, review.old_object, self._driver)
        if review.operation == "UPDATE" and devices == before:
            return Findings()
        return examine(devices)

    def _tell(self, review: Review, findings: Findings) -> None:
        result = "refused" if findings.faults else "warned" if findings.warnings else "allowed"
        resource = review.resource if review.resource in RESOURCES else OTHER
        name = "gpu_dra_driver_admission_reviews_total"
        self._metrics.count(name, resource=resource, result=result)
        if findings.faults:  # fields, not what stands there: logs are read by others than claims
            some = findings.faults[:_MOST_LOGGED]
            fields = [path_text(fault.path)[:_LONGEST_LOGGED] for fault in some]
            _log.info(
                "refused",
                resource=resource,
                object=review,
                faults=len(findings.faults),
                fields=", ".join(fields),
            )
        else:
            _log.debug(result, resource=resource, object=review)
